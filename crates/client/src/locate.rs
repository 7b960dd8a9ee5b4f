//! Questions about chunks: cached (C6), batched (C7), with neighbours (C8).
//!
//! When no look-up is under way to its partition, a look-up is sent at once; those that come during
//! it go out together after its end. So batching never makes a lone look-up wait.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use base::{FileId, Kind};
use metrics::Span;
use runtime::sync::oneshot;
use runtime::{Class, Duration, Env};
use wire::control::{
    ChunkPlace, ControlReply, ControlRequest, Group, StreamReply, StreamRequest, StreamView,
    stream_partition,
};

use crate::cache::Cache;
use crate::config::Config;
use crate::counters::{Counters, add};
use crate::error::Error;
use crate::limits::LOCATE_BATCH_MAX;
use crate::session::{Question, Refusal, Session, unexpected_reply};

/// Failure of a look-up, as every waiter of its batch gets it.
#[derive(Clone, Debug)]
struct Failure {
    kind: Kind,
    message: String,
    waited: Duration,
}

type Answer = Result<StreamView, Failure>;

struct Want {
    file: FileId,
    offset: u64,
    answer: oneshot::Sender<Answer>,
    span: Option<Span>,
}

#[derive(Default)]
struct PartitionQueue {
    waiting: VecDeque<Want>,
    busy: bool,
}

/// Answers where chunks are.
#[derive(Clone)]
pub(crate) struct Locator(Rc<LocatorInner>);

struct LocatorInner {
    env: Env,
    session: Rc<Session>,
    counters: Rc<Counters>,
    cache: RefCell<Cache>,
    queues: RefCell<BTreeMap<u16, PartitionQueue>>,
    prefetch: u32,
    attempt: Duration,
}

impl Locator {
    pub(crate) fn new(
        env: &Env,
        session: Rc<Session>,
        counters: Rc<Counters>,
        config: &Config,
    ) -> Locator {
        Locator(Rc::new(LocatorInner {
            env: env.clone(),
            session,
            counters,
            cache: RefCell::new(Cache::new(config.cache_chunks)),
            queues: RefCell::default(),
            prefetch: config.prefetch,
            attempt: config.control_attempt,
        }))
    }

    /// The chunk that holds a byte, from the cache.
    pub(crate) fn cached(&self, file: FileId, offset: u64) -> Option<Rc<ChunkPlace>> {
        let found = self.0.cache.borrow_mut().get(file, offset);
        if found.is_some() {
            add(&self.0.counters.cache_hits, 1);
        }
        found
    }

    /// Drops a stale entry.
    pub(crate) fn forget(&self, file: FileId, base: u64) {
        self.0.cache.borrow_mut().forget_chunk(file, base);
    }

    /// The chunks from an offset on, fresh from the stream service.
    pub(crate) async fn locate(
        &self,
        file: FileId,
        offset: u64,
        path: &str,
    ) -> Result<StreamView, Error> {
        let (answer, answered) = oneshot::channel();
        let (_, partitions) = self.0.session.partitions();
        let partition = stream_partition(file, partitions);
        let start = {
            let queues = &mut *self.0.queues.borrow_mut();
            let queue = queues.entry(partition).or_default();
            queue.waiting.push_back(Want { file, offset, answer, span: metrics::current() });
            !std::mem::replace(&mut queue.busy, true)
        };
        if start {
            let locator = self.clone();
            let env = self.0.env.clone();
            env.spawn(Class::Foreground, "locate", async move { locator.run(partition).await });
        }
        let failure = match answered.await {
            Ok(Ok(view)) => return Ok(view),
            Ok(Err(failure)) => failure,
            Err(_) => Failure {
                kind: Kind::Retry,
                message: "the client is going down".to_owned(),
                waited: Duration::ZERO,
            },
        };
        let Failure { kind, message, waited } = failure;
        Err(Refusal { kind, message, waited, unknown: false }.about("find the chunks of", path))
    }

    /// Asks until nothing waits.
    async fn run(&self, partition: u16) {
        loop {
            let batch: Vec<Want> = {
                let queues = &mut *self.0.queues.borrow_mut();
                let queue = queues.entry(partition).or_default();
                let count = queue.waiting.len().min(LOCATE_BATCH_MAX);
                if count == 0 {
                    queue.busy = false;
                    return;
                }
                queue.waiting.drain(..count).collect()
            };
            // The question travels under the trace of the first that waits.
            let views = match batch[0].span.clone() {
                Some(span) => span.follow(self.ask(partition, &batch)).await,
                None => self.ask(partition, &batch).await,
            };
            self.distribute(batch, views);
        }
    }

    async fn ask(&self, partition: u16, batch: &[Want]) -> Result<Vec<StreamView>, Refusal> {
        add(&self.0.counters.locates, 1);
        let limit = self.0.prefetch;
        let request = match batch {
            [want] => StreamRequest::Locate { file: want.file, offset: want.offset, limit },
            wants => StreamRequest::LocateMany {
                wants: wants.iter().map(|want| (want.file, want.offset)).collect(),
                limit,
            },
        };
        let question = Question {
            group: Group::Stream(partition),
            request: ControlRequest::Stream(request),
            attempt: self.0.attempt,
        };
        match self.0.session.ask(question, false).await? {
            ControlReply::Stream(StreamReply::Views(views)) => Ok(views),
            other => Err(unexpected_reply(&other)),
        }
    }

    fn distribute(&self, batch: Vec<Want>, answer: Result<Vec<StreamView>, Refusal>) {
        let failure = |refusal: &Refusal| Failure {
            kind: refusal.kind,
            message: refusal.message.clone(),
            waited: refusal.waited,
        };
        let mut views = match answer {
            Ok(views) => VecDeque::from(views),
            Err(refusal) => {
                for want in batch {
                    let _ = want.answer.send(Err(failure(&refusal))); // The caller may have gone.
                }
                return;
            }
        };
        for want in batch {
            let answer = if views.front().is_some_and(|view| view.file == want.file) {
                let view = views.pop_front().expect("just seen");
                self.0.cache.borrow_mut().insert(&view);
                Ok(view)
            } else {
                let message = "the stream service does not know it".to_owned();
                Err(Failure { kind: Kind::NotFound, message, waited: Duration::ZERO })
            };
            let _ = want.answer.send(answer); // The caller may have gone.
        }
    }
}
