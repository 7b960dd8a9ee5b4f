//! A sealed chunk in another form: its bytes are read, laid out, and written to the replicas of another
//! chunk (`protocols-tail.md` 9.12).
//!
//! How the bytes are laid out follows from them and from the form alone: two servers that convert two
//! replicas get the same digests, and so does each replica that was written when it is read back.

use std::array::from_fn;
use std::cell::Cell as Counter;

use base::limits::{APPEND_DATA_MAX, SECTOR};
use base::{DiskId, Kind};
use chunkstore::{ChunkStore, StoreError};
use codec::block::{BlockSize, Codec};
use codec::crc32c_extend;
use codec::limits::FRAGMENTS_MAX;
use codec::row::{Cell, RowDecoder, RowEncoder, Scheme};
use futures_util::future::try_join_all;
use runtime::{Buf, Env};
use transport::{Priority, Request, Service, Token};
use wire::control::{ChunkserverReply, ControlError, Conversion, CopyOrder, Policy, ReplicaPlace};
use wire::data::{AppendRequest, ChunkRef, DataError, DataReply, DataRequest, Purpose};
use wire::data_codec::decode_answer;
use wire::row::{
    CODED_ROW_MAX, COPY_ROW_MAX, CellPart, Fragment, Layout, cell_to, place_cell, rows, stamp_cell,
};
use wire::sector::{AppendAt, format_append, parse_footer, sectors_for};

use crate::control::{Slot, refused};
use crate::copy::CopySource;
use crate::limits::{BUSY_PAUSE, BUSY_WAIT_MAX, CONVERSIONS_MAX, COPY_READ_TIMEOUT, READ_LEN_MAX};
use crate::rebuild::{cell_of, first_cells, reading};
use crate::scrub::ReadThrough;
use crate::server::Chunkserver;
use crate::share::Urgency;

impl<S: ChunkStore> Chunkserver<S> {
    /// Makes one chunk from another, or computes only what would be written.
    pub(crate) async fn convert(
        &self,
        disk: DiskId,
        order: &Conversion,
    ) -> Result<ChunkserverReply, ControlError> {
        let mut maker = Maker::of(order)?;
        // A server with two replicas of a chunk gets both orders.
        let key = (order.made, order.places.is_empty());
        let Some(_slot) = Slot::take(&self.0.converting, key, CONVERSIONS_MAX) else {
            let text = format!("{CONVERSIONS_MAX} conversions, or this one, are under way");
            return Err(ControlError::new(Kind::Retry, text));
        };
        let read = CopyOrder {
            chunk: order.chunk,
            epoch: order.epoch,
            base: order.base,
            len: order.len,
            sources: order.sources.clone(),
            token: order.read_token,
            seal: true,
            fragment: None,
            urgent: false,
        };
        let copy = CopySource::new(disk, read);
        let mut source = Source::new(&copy, order.code);
        let mut offset = 0;
        while offset < order.len {
            let row_len = (maker.row_max as u32).min(order.len - offset);
            source.fill(self, row_len as usize).await.map_err(|error| copy.cause(error))?;
            let row = source.bytes.drain(..row_len as usize).collect();
            let (chunk, epoch, base) = (order.made, order.epoch, order.base);
            let at = AppendAt { chunk, epoch, base, offset };
            let sectors = maker.lay_out(&self.0.env, at, row).await?;
            let of = |(number, place)| (place, &sectors[number % sectors.len()]);
            let writes = order.places.iter().enumerate().map(of);
            let write = |(place, sectors)| self.write(order, place, (offset, row_len), sectors);
            try_join_all(writes.map(write)).await?;
            offset += row_len;
        }
        self.0.env.mark("chunk laid out in another form");
        Ok(ChunkserverReply::Converted { digests: maker.digests })
    }

    /// Appends a row's sectors to one replica of the chunk that is made. One that is busy is waited for;
    /// of anything else it is not known what the replica has.
    async fn write(
        &self,
        order: &Conversion,
        place: &ReplicaPlace,
        (offset, len): (u32, u32),
        sectors: &Buf,
    ) -> Result<(), ControlError> {
        let env = &self.0.env;
        let append = DataRequest::Append(AppendRequest {
            at: ChunkRef { chunk: order.made, disk: place.disk },
            epoch: order.epoch,
            base: order.base,
            offset,
            len,
            committed: 0,
            create: offset == 0,
            purpose: Purpose::Data,
        });
        let failed = |kind, why: &dyn std::fmt::Display| {
            let text = format!("{} at {} from byte {offset}: {why}", order.made, place.addr);
            ControlError::new(kind, text)
        };
        let give_up = env.now() + BUSY_WAIT_MAX;
        loop {
            let request = Request {
                service: Service::DATA,
                op: append.op(),
                priority: Priority::Background,
                flow: 0,
                trace: env.trace(),
                token: Token(order.write_token),
                body: append.encode(),
                payload: Some(sectors.clone()),
            };
            let answer = self.0.endpoint.call(place.addr, request, COPY_READ_TIMEOUT).await;
            let answer = answer.map_err(|error| failed(Kind::Unknown, &error))?;
            let answer = decode_answer(answer.status, &answer.body);
            match answer.map_err(|error| failed(Kind::Unknown, &error))? {
                Ok(DataReply::Appended { len: end }) if end == offset + len => return Ok(()),
                Ok(other) => {
                    return Err(failed(Kind::Unknown, &format!("{other:?} answers an append")));
                }
                Err(DataError::Busy) if env.now() < give_up => env.sleep(BUSY_PAUSE).await,
                Err(error) => return Err(failed(error.kind(), &error)),
            }
        }
    }

    /// The digest of a sealed replica, from its medium.
    pub(crate) async fn digest(
        &self,
        at: ChunkRef,
        len: u32,
    ) -> Result<ChunkserverReply, ControlError> {
        let refuse = |error| self.refuse(at, error);
        let disk = self.disk(at).map_err(refused)?;
        let stat = disk.store.stat(at.chunk).map_err(refuse)?;
        if stat.durable_bound != len || stat.len != len {
            return Err(refuse(StoreError::Corrupt { offset: stat.len }));
        }
        let crc = Counter::new(0);
        let read = ReadThrough { env: &self.0.env, disk: &disk, urgency: Urgency::Copy };
        let each = async |sectors: &[u8]| crc.set(digest_extend(crc.get(), sectors));
        read.run(at.chunk, len, each).await.map_err(refuse)?;
        Ok(ChunkserverReply::Digest { crc: crc.get() })
    }
}

/// The digest of sectors, verified before, behind that of others.
fn digest_extend(crc: u32, sectors: &[u8]) -> u32 {
    sectors.chunks(SECTOR).fold(crc, |crc, sector| {
        let len = parse_footer(sector).map_or(0, |footer| footer.len);
        crc32c_extend(crc, &sector[..usize::from(len)])
    })
}

/// The bytes of a chunk, in order, from its replicas.
struct Source<'a> {
    copy: &'a CopySource,
    sources: Vec<&'a ReplicaPlace>,
    /// Of a coded chunk.
    code: Option<Fragment>,
    decoder: Option<RowDecoder>,
    offset: u32,
    want: u32,
    /// Those that were read and not taken yet.
    bytes: Vec<u8>,
}

impl<'a> Source<'a> {
    fn new(copy: &'a CopySource, code: Option<Fragment>) -> Source<'a> {
        let sources = copy.order.sources.iter().collect();
        let code = code.map(reading);
        let (offset, want, bytes) = (0, READ_LEN_MAX, Vec::new());
        Source { copy, sources, code, decoder: None, offset, want, bytes }
    }

    /// Reads until so many bytes are there.
    async fn fill<S: ChunkStore>(
        &mut self,
        server: &Chunkserver<S>,
        count: usize,
    ) -> Result<(), ControlError> {
        while self.bytes.len() < count {
            let before = self.bytes.len();
            match self.code {
                None => {
                    let (sources, want) = (&mut self.sources, &mut self.want);
                    let sectors =
                        server.next_sectors(self.copy, sources, self.offset, want).await?;
                    self.push_copy(&sectors)?;
                }
                Some(code) => {
                    let (sources, k) = (&mut self.sources, usize::from(code.k));
                    let range = (self.offset, self.want);
                    let cells = server.gather(self.copy, code, sources, range, k).await;
                    if cells.len() < k && self.want > 1 && self.sources.len() >= k {
                        self.want = (self.want / 2).max(1);
                        continue;
                    }
                    if let Err(error) = self.push_cells(&cells, k) {
                        if error.kind != Kind::Corrupt {
                            return Err(error);
                        }
                        // Its row may have been coded wrong: others of its cells have the bytes.
                        let range = (self.offset, 1);
                        let (sources, n) = (&mut self.sources, usize::from(code.k + code.p));
                        let all = server.gather(self.copy, code, sources, range, n).await;
                        self.push_row_of_any(&all, k).ok_or(error)?;
                        server.0.env.mark("conversion reads a row from other fragments");
                    }
                }
            }
            if self.bytes.len() == before {
                return Err(self.damaged("no sectors"));
            }
            self.offset += (self.bytes.len() - before) as u32;
            self.want = (self.want * 2).min(READ_LEN_MAX);
        }
        Ok(())
    }

    fn damaged(&self, why: impl std::fmt::Display) -> ControlError {
        let text = format!("{} from byte {}: {why}", self.copy.order.chunk, self.offset);
        ControlError::new(Kind::Corrupt, text)
    }

    /// Takes the bytes in verified sectors of a copy.
    fn push_copy(&mut self, sectors: &[u8]) -> Result<(), ControlError> {
        match Layout::of(sectors) {
            Layout::Plain => {
                for sector in sectors.chunks(SECTOR) {
                    let footer = parse_footer(sector).map_err(|error| self.damaged(error))?;
                    self.bytes.extend_from_slice(&sector[..usize::from(footer.len)]);
                }
                Ok(())
            }
            Layout::Rows(Fragment::COPY) => self.push_rows(&[(0, sectors)]),
            Layout::Rows(_) => Err(self.damaged("fragments where copies are on record")),
        }
    }

    fn push_cells(&mut self, cells: &[(u8, Buf)], k: usize) -> Result<(), ControlError> {
        if cells.len() < k {
            let text = format!("fewer than {k} fragments serve {}", self.copy.order.chunk);
            return Err(ControlError::new(Kind::Reroute, text));
        }
        let cells: Vec<_> = cells.iter().map(|(number, it)| (*number, &it[..])).collect();
        self.push_rows(&cells)
    }

    /// Takes the bytes of the first row, of whichever k of its cells have them; nothing when none have.
    fn push_row_of_any(&mut self, cells: &[(u8, Buf)], k: usize) -> Option<()> {
        let cells = first_cells(cells);
        let cells: Vec<_> = cells.iter().map(cell_of).collect();
        let mut row = Vec::new();
        self.decoder.get_or_insert_default().read_any(&cells, k, &mut row).ok()?;
        self.bytes.extend_from_slice(&row);
        Some(())
    }

    /// Takes the bytes of the rows whose whole cells are in the sectors of each of some fragments, up to
    /// one that is damaged; an error when that is the first.
    fn push_rows(&mut self, cells: &[(u8, &[u8])]) -> Result<(), ControlError> {
        let mut all: Vec<_> = cells.iter().map(|(number, it)| (*number, rows(it))).collect();
        let mut decoder = self.decoder.take().unwrap_or_default();
        let before = self.bytes.len();
        loop {
            let next = all.iter_mut().map(|(number, rows)| Some((*number, rows.next()?)));
            let Some(row) = next.collect::<Option<Vec<_>>>() else { break };
            let first = row[0].1.0;
            let mut contents = Vec::with_capacity(row.len());
            for (number, (other, sectors)) in &row {
                let mut cell = vec![0; other.cell_len as usize];
                cell_to(sectors, &mut cell);
                contents.push((*number, cell));
            }
            let cells =
                contents.iter().map(|(fragment, bytes)| Cell { fragment: *fragment, bytes });
            let start = self.bytes.len();
            self.bytes.resize(start + first.len as usize, 0);
            let cells: Vec<_> = cells.collect();
            if let Err(error) = decoder.read(&cells, &mut self.bytes[start..]) {
                self.bytes.truncate(start);
                if start == before {
                    self.decoder = Some(decoder);
                    return Err(self.damaged(error));
                }
                break;
            }
        }
        self.decoder = Some(decoder);
        Ok(())
    }
}

/// Lays rows of a form out.
struct Maker {
    /// Absent of plain copies, and while another thread has it.
    rows: Option<Box<RowMaker>>,
    /// Bytes of each append but the last.
    row_max: usize,
    /// Of each fragment, or of all copies.
    digests: Vec<u32>,
}

impl Maker {
    fn of(order: &Conversion) -> Result<Maker, ControlError> {
        let Policy { copies, data, compression, .. } = order.policy;
        let places = order.places.len();
        let whole = places == 0 || places == usize::from(copies);
        if !order.policy.is_valid() || order.len == 0 || order.sources.is_empty() || !whole {
            let text = "a conversion needs a policy, a length, a source, and all places or none";
            return Err(ControlError::new(Kind::Invalid, text));
        }
        if data == 1 && compression.is_none() {
            return Ok(Maker { rows: None, row_max: APPEND_DATA_MAX, digests: vec![0] });
        }
        let (codec, block) =
            compression.map_or((Codec::Plain, BlockSize::PAPERS), |it| (it.codec, it.block));
        let parity = if data == 1 { 0 } else { copies - data };
        let scheme = Scheme::new(data.into(), parity.into(), block);
        let scheme = scheme.map_err(|error| ControlError::new(Kind::Invalid, error.to_string()))?;
        let row_max = if data == 1 { COPY_ROW_MAX } else { CODED_ROW_MAX };
        let rows = Some(Box::new(RowMaker::new(scheme, codec, row_max)));
        Ok(Maker { rows, row_max, digests: vec![0; scheme.n()] })
    }

    /// The sectors of a row, of each fragment, or of all copies. What takes long is done on another thread:
    /// users' requests do not wait for it (C24).
    async fn lay_out(
        &mut self,
        env: &Env,
        at: AppendAt,
        row: Vec<u8>,
    ) -> Result<Vec<Buf>, ControlError> {
        let alloc = |len: usize| {
            let sectors = env.pool().alloc(sectors_for(len) * SECTOR);
            sectors.map_err(|error| ControlError::new(Kind::Retry, error.to_string()))
        };
        let Some(mut rows) = self.rows.take() else {
            let mut sectors = alloc(row.len())?;
            format_append(at, &row, &mut sectors);
            self.digests[0] = crc32c_extend(self.digests[0], &row);
            return Ok(vec![sectors.freeze()]);
        };
        let drawn = rows.draw(env);
        let (rows, laid) = env
            .blocking("lay a row out", move || {
                let laid = rows.lay_out(&row, &drawn);
                (rows, laid)
            })
            .await;
        let laid = laid.ok_or_else(|| {
            let text = "what was laid out does not decode to the same bytes: this machine errs";
            tracing::error!(chunk = %at.chunk, offset = at.offset, "{text}");
            ControlError::new(Kind::Corrupt, text)
        })?;
        let mut all = Vec::with_capacity(rows.scheme.n());
        for (cell, number) in rows.cells(laid).zip(0u8..) {
            let mut sectors = alloc(cell.len())?;
            place_cell(cell, &mut sectors);
            let part = CellPart { fragment: number, codec: rows.codec, index: 0 };
            stamp_cell(at, part, cell.len(), &mut sectors);
            let digest = &mut self.digests[usize::from(number)];
            *digest = crc32c_extend(*digest, cell);
            all.push(sectors.freeze());
            env.yield_now().await;
        }
        self.rows = Some(rows);
        Ok(all)
    }
}

struct RowMaker {
    scheme: Scheme,
    codec: Codec,
    encoder: RowEncoder,
    decoder: RowDecoder,
    cells: Vec<u8>,
    /// What was decoded, to be compared.
    again: Vec<u8>,
}

/// The row that was laid out last: room for a cell, and its length.
#[derive(Clone, Copy)]
struct Laid {
    cell_max: usize,
    cell_len: usize,
}

impl RowMaker {
    fn new(scheme: Scheme, codec: Codec, row_max: usize) -> RowMaker {
        RowMaker {
            scheme,
            codec,
            encoder: RowEncoder::new(scheme, codec),
            decoder: RowDecoder::new(),
            cells: vec![0; scheme.n() * scheme.cell_max(row_max)],
            again: Vec::new(),
        }
    }

    /// Fragments from which a row is decoded, at random.
    fn draw(&self, env: &Env) -> Vec<usize> {
        let mut numbers: Vec<usize> = (0..self.scheme.n()).collect();
        for at in 0..self.scheme.k() {
            let other = at + env.random_below((numbers.len() - at) as u64) as usize;
            numbers.swap(at, other);
        }
        numbers.truncate(self.scheme.k());
        numbers
    }

    /// Lays a row out, decodes it from some of its fragments, and compares (C26). Nothing when that gives
    /// other bytes.
    fn lay_out(&mut self, row: &[u8], drawn: &[usize]) -> Option<Laid> {
        let (n, cell_max) = (self.scheme.n(), self.scheme.cell_max(row.len()));
        let mut chunks = self.cells.chunks_mut(cell_max);
        let mut cells: [&mut [u8]; FRAGMENTS_MAX] = from_fn(|_| chunks.next().unwrap_or_default());
        let cell_len = self.encoder.encode(row, &mut cells[..n]).cell_len();
        let laid = Laid { cell_max, cell_len };
        let cell = |&number: &usize| {
            let bytes = &self.cells[number * cell_max..][..cell_len];
            Cell { fragment: number as u8, bytes }
        };
        let cells: Vec<_> = drawn.iter().map(cell).collect();
        self.again.resize(row.len(), 0);
        let read = self.decoder.read(&cells, &mut self.again);
        (read.is_ok() && self.again == row).then_some(laid)
    }

    fn cells(&self, laid: Laid) -> impl Iterator<Item = &[u8]> {
        let cells = self.cells.chunks(laid.cell_max).take(self.scheme.n());
        cells.map(move |cell| &cell[..laid.cell_len])
    }
}
