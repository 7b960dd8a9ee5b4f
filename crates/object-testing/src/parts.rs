//! [`InParts`]: an object that is sent in parts, with what clients do wrong: parts that are sent twice, or
//! behind the end, uploads that are left.

use std::collections::BTreeMap;

use object_index::Service;
use object_proto::{
    Committed, Completion, Conditions, Error, Etag, NewUpload, ObjectFacts, ObjectLock, Part,
    PartNumber, PartsRequest, Target, UploadId, UserId,
};
use runtime::{Class, Duration, Rng};

use crate::storage::plan_of;

/// An object that a client sends in parts.
pub(crate) struct InParts<'a> {
    /// Takes note of a rule that is seen broken.
    pub(crate) violated: &'a dyn Fn(String),
    pub(crate) service: &'a Service,
    pub(crate) target: Target,
    /// Its number: what is done follows from it.
    pub(crate) value: u64,
    /// What keeps it from being removed.
    pub(crate) lock: ObjectLock,
}

/// Nothing was changed, and the client has given up.
fn given_up() -> Error {
    Error::Busy { cause: "the client has given up".to_owned() }
}

async fn send(
    service: Service,
    (target, upload, number): (Target, UploadId, PartNumber),
    bytes: Vec<u8>,
    etag: Etag,
) -> Result<(), Error> {
    let plan = plan_of(u64::from(number.get()));
    let mut part = service.put_part(target, (upload, number), plan).await?;
    for some in bytes.chunks(300_000) {
        part.write(some).await?;
    }
    let facts = ObjectFacts { etag, ..ObjectFacts::default() };
    part.commit(facts, Conditions::default()).await.map(drop)
}

impl InParts<'_> {
    /// Sends it. [`Error::Busy`] when nothing was changed.
    pub(crate) async fn put(
        &self,
        body: &[u8],
        etag: Etag,
        conditions: Conditions,
        slow: Duration,
    ) -> Result<Committed, Error> {
        let mut rng = Rng::new(self.value ^ 0x7a57);
        let upload = NewUpload {
            nonce: rng.next_u64(),
            owner: UserId::new("load"),
            lock: self.lock,
            ..NewUpload::default()
        };
        let upload = self.service.begin_upload(self.target.clone(), upload).await?;
        let cuts = self.cuts(body, &mut rng);
        // What each number was sent last with.
        let mut sent: BTreeMap<PartNumber, (Etag, u64)> = BTreeMap::new();
        let also = (rng.one_in(4)).then(|| (self.number(&mut rng), vec![1; 700]));
        let twice = |rng: &mut Rng| rng.one_in(4).then(|| vec![2; 600]);
        let mut all = Vec::new();
        for (number, bytes) in &cuts {
            all.extend(twice(&mut rng).map(|other| (*number, other)));
            all.push((*number, bytes.to_vec()));
        }
        all.extend(also.filter(|(number, _)| cuts.iter().all(|cut| cut.0 != *number)));
        for (at, (number, bytes)) in all.into_iter().enumerate() {
            let (tag, size) = (Etag::new(format!("part {at}")), bytes.len() as u64);
            sent.insert(number, (tag.clone(), size));
            let part = (self.target.clone(), upload, number);
            match send(self.service.clone(), part, bytes, tag).await {
                Ok(()) => {}
                // It may have been under way for too long.
                Err(Error::NoSuchUpload) => return Err(given_up()),
                Err(Error::Unknown { .. }) => return Err(given_up()),
                Err(error) => return Err(error),
            }
        }
        let parts = self.list(upload).await?;
        let listed: BTreeMap<_, _> =
            parts.iter().map(|part| (part.number, (part.etag.clone(), part.size))).collect();
        if listed != sent {
            self.violated(format!("has the parts {listed:?} and not {sent:?}"));
        }
        match rng.below(10) {
            0 => return Err(given_up()),
            1 => {
                let aborted = self.service.abort_upload(self.target.clone(), upload).await;
                if let Err(Error::Unknown { .. } | Error::Busy { .. }) | Ok(()) = &aborted {
                    return Err(given_up());
                }
                return Err(self.ended_early(aborted.expect_err("it is none of these")));
            }
            _ => {}
        }
        self.service.env().sleep(slow).await;
        let id = |number| parts.iter().find(|part| part.number == number).map(|part| part.data_id);
        let named = cuts.iter().filter_map(|(number, _)| Some((*number, id(*number)?))).collect();
        let completion = Completion { upload, parts: named, etag, checksums: Vec::new() };
        self.complete(completion, conditions, &mut rng).await
    }

    /// Completes it, with or without a part that is sent at the same time, and then some.
    async fn complete(
        &self,
        completion: Completion,
        conditions: Conditions,
        rng: &mut Rng,
    ) -> Result<Committed, Error> {
        let upload = completion.upload;
        let again = (self.target.clone(), upload, completion.parts[0].0);
        let late = rng.one_in(4).then(|| {
            let (service, part) = (self.service.clone(), again.clone());
            let late = send(service, part, vec![3; 650], Etag::new("late"));
            self.service.env().spawn(Class::Foreground, "late part", late)
        });
        let target = self.target.clone();
        let completed =
            self.service.complete_upload(target.clone(), completion.clone(), conditions).await;
        if let Some(late) = late {
            let _ = late.await; // Either of the two has come first.
        }
        let committed = match completed {
            Ok(committed) => committed,
            Err(Error::NoSuchUpload | Error::NoSuchPart { .. }) => return Err(given_up()),
            Err(error) => return Err(error),
        };
        let what = match rng.below(6) {
            0 => {
                let none = Conditions::default();
                let twice = self.service.complete_upload(target, completion, none).await;
                twice.map(drop).map(|()| "was completed twice")
            }
            1 => {
                let bytes = vec![4; 550];
                let late = send(self.service.clone(), again, bytes, Etag::new("later")).await;
                late.map(|()| "took a part behind its end")
            }
            2 => {
                let aborted = self.service.abort_upload(target, upload).await;
                aborted.map(|()| "was aborted behind its end")
            }
            _ => return Ok(committed),
        };
        match what {
            Ok(what) => self.violated(what.to_owned()),
            Err(Error::NoSuchUpload | Error::Unknown { .. } | Error::Busy { .. } | Error::Full) => {
            }
            Err(error) => self.violated(format!("behind its end: {error}")),
        }
        Ok(committed)
    }

    fn number(&self, rng: &mut Rng) -> PartNumber {
        PartNumber::new(1 + rng.below(20)).expect("it is within bounds")
    }

    /// The body in parts, of which some are empty, with numbers that leave some out.
    fn cuts<'b>(&self, body: &'b [u8], rng: &mut Rng) -> Vec<(PartNumber, &'b [u8])> {
        let (count, even) = (1 + rng.below(6), rng.one_in(2));
        let (mut left, mut number, mut cuts) = (body, 0, Vec::new());
        for at in (0..count).rev() {
            let len = match (at, even) {
                (0, _) => left.len(),
                (_, true) => (body.len() / count as usize).min(left.len()),
                (_, false) => rng.below(left.len() as u64 + 1) as usize,
            };
            let (part, rest) = left.split_at(len);
            left = rest;
            number += 1 + if even { 0 } else { rng.below(3) };
            cuts.push((PartNumber::new(number).expect("it is within bounds"), part));
        }
        cuts
    }

    async fn list(&self, upload: UploadId) -> Result<Vec<Part>, Error> {
        let mut ask = PartsRequest { target: self.target.clone(), upload, after: 0, limit: 4 };
        let mut all = Vec::new();
        loop {
            let page = match self.service.parts(ask.clone()).await {
                Ok(page) => page,
                Err(Error::NoSuchUpload) => return Err(given_up()),
                Err(error) => return Err(error),
            };
            all.extend(page.parts);
            match all.last() {
                Some(last) if page.more => ask.after = last.number.get(),
                _ => return Ok(all),
            }
        }
    }

    fn ended_early(&self, error: Error) -> Error {
        match error {
            Error::NoSuchUpload => given_up(),
            error => error,
        }
    }

    fn violated(&self, what: String) {
        (self.violated)(format!("upload of {}, object {}: {what}", self.target, self.value));
    }
}
