//! How a service finds who decides: the map of ranges, which it keeps until an owner says that a range is not
//! its own, and requests that are made again elsewhere then (`object-protocols.md` 3.2).

use std::rc::Rc;

use object_proto::{
    CatalogRequest, Change, ChangeReply, Error, FileName, RangeBound, RangeId, RangeMap,
    RangeReply, RangeRequest, Reply, Request, RequestHead, Target,
};
use runtime::{Duration, Instant};

use crate::answer_pages::read_map;
use crate::limits::{ATTEMPT, CHANGE_BUDGET, PAUSE, WHERE_ATTEMPT};
use crate::service::{Service, unexpected};
use crate::session::{Decider, Number};

/// Pauses between attempts, until a deadline.
struct Attempts<'a> {
    service: &'a Service,
    deadline: Instant,
    pause: Duration,
}

impl<'a> Attempts<'a> {
    fn new(service: &'a Service) -> Attempts<'a> {
        let deadline = service.env().now() + CHANGE_BUDGET;
        Attempts { service, deadline, pause: PAUSE.0 }
    }

    /// Time for an attempt.
    fn time(&self) -> Duration {
        ATTEMPT.min(self.deadline - self.service.env().now())
    }

    /// Waits for the next attempt; false when there is no time for it.
    async fn wait(&mut self) -> bool {
        let env = self.service.env();
        if env.now() + self.pause >= self.deadline {
            return false;
        }
        env.sleep(env.jitter(self.pause)).await;
        self.pause = (2 * self.pause).min(PAUSE.1);
        true
    }
}

/// The cause why something is asked again, or an answer.
fn again(answer: Result<Reply, Error>) -> Result<Result<Reply, Error>, String> {
    match answer {
        Err(Error::Reroute) => Err(Error::Reroute.to_string()),
        Err(Error::Busy { cause } | Error::Unknown { cause }) => Err(cause),
        answer => Ok(answer),
    }
}

impl Service {
    /// The ranges, as far as is known.
    pub async fn map(&self) -> Result<Rc<RangeMap>, Error> {
        if let Some(map) = &*self.0.map.borrow() {
            return Ok(map.clone());
        }
        let map = Rc::new(read_map(async |request| self.catalog(request).await).await?);
        self.0.map.replace(Some(map.clone()));
        Ok(map)
    }

    /// Asks for the ranges again: one was not its owner's. While managers are silent, what is known is used.
    pub(crate) async fn refresh_map(&self, time: Duration) {
        let end = self.env().now() + time;
        let ask = async |request: CatalogRequest| {
            let left = end - self.env().now();
            match self.0.owners.call(Request::Catalog(request), left.min(WHERE_ATTEMPT)).await? {
                Reply::Catalog(reply) => Ok(reply),
                _ => Err(unexpected()),
            }
        };
        if let Ok(map) = read_map(ask).await {
            self.0.map.replace(Some(Rc::new(map)));
        }
    }

    /// Asks what changes nothing, until it is answered.
    pub(crate) async fn ask(&self, request: Request) -> Result<Reply, Error> {
        let mut attempts = Attempts::new(self);
        loop {
            let answer = self.0.owners.call(request.clone(), attempts.time()).await;
            match again(answer) {
                Ok(answer) => return answer,
                Err(cause) if !attempts.wait().await => return Err(Error::Busy { cause }),
                Err(_) => {}
            }
        }
    }

    /// Asks the owner of what comes first at a bound, or behind it, what changes nothing, until it is
    /// answered. Returns which range's owner has answered, and where that range ends.
    pub(crate) async fn ask_behind(
        &self,
        bound: &RangeBound,
        request: RangeRequest,
    ) -> Result<(RangeReply, (RangeId, Option<RangeBound>)), Error> {
        let mut attempts = Attempts::new(self);
        loop {
            let map = self.map().await?;
            let (range, end) = map.behind(bound);
            let ask = Request::Range(range, request.clone());
            let answer = self.0.owners.call(ask, attempts.time()).await;
            let is_elsewhere = answer == Err(Error::Reroute);
            match again(answer) {
                Ok(Ok(Reply::Range(reply))) => return Ok((reply, (range, end.cloned()))),
                Ok(Ok(_)) => return Err(unexpected()),
                Ok(Err(error)) => return Err(error),
                Err(cause) if !attempts.wait().await => return Err(Error::Busy { cause }),
                Err(_) if is_elsewhere => self.refresh_map(attempts.time()).await,
                Err(_) => {}
            }
        }
    }

    /// Asks the owner of a key what changes nothing, until it is answered.
    pub(crate) async fn ask_owner(
        &self,
        target: &Target,
        request: RangeRequest,
    ) -> Result<RangeReply, Error> {
        self.ask_behind(&RangeBound::of(target), request).await.map(|(reply, _)| reply)
    }

    /// Makes a change once, whatever is lost on the way: of a key's, or else of the manager's; one that names a
    /// file of bodies has it kept. The request is built for whom it is sent to.
    pub(crate) async fn change(
        &self,
        number: &Number,
        (target, file): (Option<&Target>, Option<&FileName>),
        build: impl Fn(RequestHead, Decider) -> Request,
    ) -> Result<Reply, Error> {
        let (env, session) = (self.env(), &self.0.session);
        let mut attempts = Attempts::new(self);
        let deadline = attempts.deadline;
        // An attempt may be under way still.
        let mut unanswered = None;
        let mut cause = String::new();
        while env.now() < deadline {
            let decider = match target {
                Some(target) => Decider::Owner(self.map().await?.of(target)),
                None => Decider::Manager,
            };
            let left = deadline - env.now();
            match session.head(number, decider, (deadline, left)).await {
                Ok(_) if env.now() >= deadline => break,
                Ok(head) => {
                    let request = build(head, decider);
                    match self.0.owners.call(request, attempts.time()).await {
                        Err(Error::Reroute) => {
                            session.lost_route(decider);
                            cause = Error::Reroute.to_string();
                            self.moved(decider, attempts.time()).await;
                        }
                        Err(Error::Unknown { cause: lost }) => {
                            session.lost_route(decider);
                            unanswered = Some(lost);
                        }
                        Err(Error::Busy { cause: busy }) => cause = busy,
                        Err(Error::Unheld) => {
                            cause = Error::Unheld.to_string();
                            if self.is_lost((decider, file), attempts.time()).await {
                                break;
                            }
                        }
                        // An earlier attempt may still be made: only its time decides.
                        Err(Error::Full) if unanswered.is_some() => {
                            self.0.fullness.note_full(env.now());
                            cause = Error::Full.to_string();
                        }
                        Err(Error::SessionOver) => {
                            session.over(number);
                            cause = Error::SessionOver.to_string();
                            break;
                        }
                        answer => return answer,
                    }
                }
                Err(Error::SessionOver) => {
                    cause = Error::SessionOver.to_string();
                    break;
                }
                Err(error) => {
                    if error == Error::Reroute {
                        self.moved(decider, attempts.time()).await;
                    }
                    cause = error.to_string();
                }
            }
            attempts.wait().await;
        }
        match unanswered {
            None => Err(Error::Busy { cause }),
            Some(lost) => {
                // Only then it is decided.
                env.sleep_until(session.decided_by(deadline)).await;
                Err(Error::Unknown { cause: lost })
            }
        }
    }

    /// Announces a file again that the owner does not keep; true when it is gone.
    async fn is_lost(&self, (decider, file): (Decider, Option<&FileName>), time: Duration) -> bool {
        let (Decider::Owner(range), Some(file)) = (decider, file) else { return true };
        self.env().mark("object: a file is announced again");
        self.hold(range, file, time).await.unwrap_or(false)
    }

    /// A range is not where it was, or not there any more.
    async fn moved(&self, decider: Decider, time: Duration) {
        if decider != Decider::Manager {
            self.refresh_map(time).await;
        }
    }

    pub(crate) async fn change_object(
        &self,
        number: &Number,
        change: &Change,
    ) -> Result<ChangeReply, Error> {
        let build = |head, decider| {
            let Decider::Owner(range) = decider else { unreachable!("it is a key's") };
            let change = change.clone();
            Request::Range(range, RangeRequest::Change { head, change })
        };
        match self.change(number, (Some(change.target()), change.file()), build).await? {
            Reply::Range(RangeReply::Changed(reply)) => Ok(reply),
            _ => Err(unexpected()),
        }
    }
}
