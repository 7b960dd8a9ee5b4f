//! [`PartsReader`]: content of an object that consists of the parts of an upload
//! (`object-protocols.md` 9.1).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use futures_util::future::{LocalBoxFuture, try_join_all};
use object_proto::{Error, NewObject, ObjectInfo, PartMap, PartNumber, PartsRequest, Target};
use runtime::sync::Mutex;

use crate::bodies::Whole;
use crate::limits::{OPENED_PARTS_MAX, PART_BODIES_MAX};

/// Parts with the places of their bytes, in order of numbers.
pub(crate) type Bodies = Vec<(PartNumber, ObjectInfo)>;

/// Where parts are found.
pub(crate) trait PartBodies {
    /// Asks where the bytes of parts are.
    fn ask(&self, ask: PartsRequest) -> LocalBoxFuture<'_, Result<Bodies, Error>>;

    /// Opens a part's bytes.
    fn open<'a>(
        &'a self,
        target: &'a Target,
        part: &'a NewObject,
    ) -> LocalBoxFuture<'a, Result<Whole, Error>>;
}

/// Content in parts: which they are is known, where their bytes are is asked for as they are read.
pub(crate) struct PartsReader {
    source: Rc<dyn PartBodies>,
    target: Target,
    map: PartMap,
    size: u64,
    /// Parts whose bodies are known.
    known: RefCell<BTreeMap<u16, NewObject>>,
    /// Opened parts, newest last.
    opened: RefCell<Vec<(u16, Rc<Whole>)>>,
    asking: Mutex<()>,
}

impl PartsReader {
    /// Content of an object; [`Error::NoSuchKey`] when its first part is gone.
    pub(crate) async fn new(
        source: Rc<dyn PartBodies>,
        target: &Target,
        map: &PartMap,
    ) -> Result<PartsReader, Error> {
        let reader = PartsReader {
            source,
            target: target.clone(),
            map: map.clone(),
            size: map.size(),
            known: RefCell::default(),
            opened: RefCell::default(),
            asking: Mutex::new(()),
        };
        if let Some((first, _)) = map.within(0..1).first() {
            reader.part(*first).await?;
        }
        Ok(reader)
    }

    /// Bytes of the content: `len` of them, fewer only at its end.
    pub(crate) async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        let end = self.size.min(offset.saturating_add(len as u64));
        let parts = self.map.within(offset..end.max(offset));
        let parts = parts.into_iter().map(|(number, range)| {
            let within = offset.max(range.start) - range.start..end.min(range.end) - range.start;
            self.read_part(number, range.end - range.start, within)
        });
        Ok(try_join_all(parts).await?.concat())
    }

    async fn read_part(
        &self,
        number: PartNumber,
        size: u64,
        within: Range<u64>,
    ) -> Result<Vec<u8>, Error> {
        let bytes = self.part(number).await?;
        let known = self.known.borrow().get(&number.get()).map(|part| part.size);
        let len = (within.end - within.start) as usize;
        let read = bytes.read(within.start, len).await?;
        match known.is_none_or(|known| known == size) && read.len() == len {
            true => Ok(read),
            false => {
                let what = format!("part {number} of {} is not as long as it was", self.target);
                Err(Error::Damaged { what })
            }
        }
    }

    /// A part, opened.
    async fn part(&self, number: PartNumber) -> Result<Rc<Whole>, Error> {
        let of = |parts: &[(u16, Rc<Whole>)]| parts.iter().position(|it| it.0 == number.get());
        {
            let opened = &mut *self.opened.borrow_mut();
            if let Some(at) = of(opened) {
                let part = opened.remove(at);
                opened.push(part.clone());
                return Ok(part.1);
            }
        }
        let body = self.body(number).await?;
        let part = Rc::new(self.source.open(&self.target, &body).await?);
        let opened = &mut *self.opened.borrow_mut();
        if of(opened).is_none() {
            if opened.len() >= OPENED_PARTS_MAX {
                opened.remove(0);
            }
            opened.push((number.get(), part.clone()));
        }
        Ok(part)
    }

    /// Where a part's bytes are.
    async fn body(&self, number: PartNumber) -> Result<NewObject, Error> {
        let known = || self.known.borrow().get(&number.get()).cloned();
        if let Some(part) = known() {
            return Ok(part);
        }
        let _asking = self.asking.lock().await;
        if let Some(part) = known() {
            return Ok(part);
        }
        let ask = PartsRequest {
            target: self.target.clone(),
            upload: self.map.upload,
            after: number.get() - 1,
            limit: PART_BODIES_MAX,
        };
        let bodies = self.source.ask(ask).await?;
        let all = &mut *self.known.borrow_mut();
        if all.len() > 4 * PART_BODIES_MAX as usize {
            all.clear();
        }
        all.extend(bodies.into_iter().map(|(number, info)| (number.get(), info.object)));
        all.get(&number.get()).cloned().ok_or(Error::NoSuchKey)
    }
}
