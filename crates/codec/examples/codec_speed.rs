//! Speed of erasure codes and of block compression on one core, beside a copy of the same bytes.
//!
//! `cargo run --release -p codec --example codec_speed -- [ec|blocks|rows] [ROUNDS]`
//!
//! Rates are of data bytes, 10^9 a second (blocks and rows: 10^6 of logical bytes), the best of ROUNDS
//! (60) rounds. In a round each line and its copy have their turn one after the other, so that what else
//! the machine does meets them alike. Buffers are in the cache as far as they fit, and begin at
//! pages, as those of disks and networks do.

use std::time::{Duration, Instant};

use codec::block::{BLOCK_HEAD, BlockSize, Codec, Packer, Unpacker};
use codec::ec::{Code, Kernel, Rebuild};
use codec::row::{Cell, RowDecoder, RowEncoder, Scheme};

/// Bytes that blocks are cut from: more than a CPU learns by heart.
const DATA: usize = 1 << 20;
/// A turn: long against the clock's grain, short against a time slice.
const TURN: Duration = Duration::from_millis(1);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |part: &str| args.first().is_none_or(|only| only == part);
    let rounds = args.get(1).and_then(|text| text.parse().ok()).unwrap_or(60);
    if is_wanted("ec") {
        println!("kernel       code  KiB work          GB/s     copy  ratio");
        for (k, p) in [(4, 2), (8, 3)] {
            for kib in [4, 16, 64] {
                erasure(k, p, kib << 10, rounds);
            }
        }
    }
    if is_wanted("blocks") {
        println!("\ncodec  KiB data      pack   unpack     copy stored");
        for kib in [4, 16, 64] {
            for (name, data) in [("half", half(DATA)), ("noise", noise(DATA))] {
                for codec in [Codec::Lz4, Codec::Zstd] {
                    blocks(codec, kib << 10, name, &data, rounds);
                }
            }
        }
    }
    if is_wanted("rows") {
        println!("\ncodec  code data    encode     read degraded     copy stored");
        for (k, p) in [(4, 2), (8, 3)] {
            rows(k, p, Codec::Plain, "noise", &noise(1 << 20), rounds);
            rows(k, p, Codec::Lz4, "half", &half(1 << 20), rounds);
        }
    }
}

/// Seconds of a call, over one turn.
#[expect(clippy::disallowed_methods, reason = "a measurement of real time")]
fn turn(mut work: impl FnMut()) -> f64 {
    let started = Instant::now();
    let mut calls = 0u32;
    while started.elapsed() < TURN {
        (0..4).for_each(|_| work());
        calls += 4;
    }
    started.elapsed().as_secs_f64() / f64::from(calls)
}

/// The least of `rounds` turns of each work, in turns.
fn best<const N: usize>(rounds: usize, mut works: [&mut dyn FnMut(); N]) -> [f64; N] {
    let mut least = [f64::MAX; N];
    for _ in 0..rounds {
        for (least, work) in least.iter_mut().zip(&mut works) {
            *least = least.min(turn(&mut **work));
        }
    }
    least
}

/// Fragments of `len` bytes that follow each other in one buffer, as sectors do.
fn erasure(k: usize, p: usize, len: usize, rounds: usize) {
    let (mut held, mut copied) = (Pages::new((k + p) * len), Pages::new(k * len));
    held.bytes().copy_from_slice(&noise((k + p) * len));
    for kernel in Kernel::available() {
        let code = Code::with_kernel(k, p, kernel).expect("within limits");
        for lost in 0..3 {
            let mut order: Vec<u8> = (0..code.n() as u8).collect();
            // Data fragments are lost, and parity takes their places.
            order.rotate_left(lost);
            let decoder = match lost {
                0 => None,
                _ => {
                    let rebuild = Rebuild { from: &order[..k], to: &order[code.n() - lost..] };
                    Some(code.decoder(rebuild).expect("k of n"))
                }
            };
            let (from, to) = held.bytes().split_at_mut(k * len);
            let sources: Vec<&[u8]> = from.chunks(len).collect();
            let mut targets: Vec<&mut [u8]> = to.chunks_mut(len).collect();
            let mut compute = || match &decoder {
                None => code.encode(&sources, &mut targets),
                Some(decoder) => decoder.decode(&sources, &mut targets[..lost]),
            };
            let mut copy = || {
                for (source, target) in sources.iter().zip(copied.bytes().chunks_mut(len)) {
                    std::hint::black_box(target).copy_from_slice(std::hint::black_box(source));
                }
            };
            let [computed, copy] = best(rounds, [&mut compute, &mut copy]);
            let rate = |seconds: f64| (k * len) as f64 / seconds / 1e9;
            println!(
                "{:<12} {:>4} {:>4} {:<10} {:>7.1} {:>8.1} {:>6.2}",
                kernel.name(),
                format!("{k},{p}"),
                len >> 10,
                if lost == 0 { "encode".to_owned() } else { format!("rebuild {lost}") },
                rate(computed),
                rate(copy),
                copy / computed,
            );
        }
    }
}

fn blocks(codec: Codec, len: usize, name: &str, data: &[u8], rounds: usize) {
    let size = BlockSize::new(len.ilog2() as u8).expect("within limits");
    let (mut packer, mut unpacker) = (Packer::new(codec, size), Unpacker::new());
    let mut out = vec![0; len + BLOCK_HEAD];
    let packed: Vec<Vec<u8>> = data
        .chunks(len)
        .map(|block| {
            let used = packer.pack(block, &mut out);
            out[..used].to_vec()
        })
        .collect();
    let stored: usize = packed.iter().map(Vec::len).sum();
    let (mut back, mut from, mut to) = (Pages::new(len), Pages::new(len), Pages::new(len));
    let mut next = data.chunks(len).cycle();
    let mut pack = || {
        std::hint::black_box(packer.pack(next.next().expect("it is a circle"), &mut out));
    };
    let mut next = packed.iter().cycle();
    let mut unpack = || {
        let used = unpacker.unpack(next.next().expect("it is a circle"), back.bytes());
        std::hint::black_box(used).expect("it was packed");
    };
    let mut copy = || std::hint::black_box(to.bytes()).copy_from_slice(from.bytes());
    let [pack, unpack, copy] = best(rounds, [&mut pack, &mut unpack, &mut copy]);
    let rate = |seconds: f64| len as f64 / seconds / 1e6;
    println!(
        "{:<6} {:>3} {:<6} {:>7.0} {:>8.0} {:>8.0} {:>6.2}",
        codec.name(),
        len >> 10,
        name,
        rate(pack),
        rate(unpack),
        rate(copy),
        stored as f64 / data.len() as f64,
    );
}

/// Rows of 1 MiB with blocks of 16 KiB: laid out, read from data cells, and read with p of these lost.
fn rows(k: usize, p: usize, codec: Codec, name: &str, row: &[u8], rounds: usize) {
    let scheme = Scheme::new(k, p, BlockSize::new(14).expect("within limits"));
    let scheme = scheme.expect("within limits");
    let mut encoder = RowEncoder::new(scheme, codec);
    let cell_max = scheme.cell_max(row.len()).next_multiple_of(4096);
    let mut held = Pages::new(scheme.n() * cell_max);
    let mut views: Vec<&mut [u8]> = held.bytes().chunks_mut(cell_max).collect();
    let head = encoder.encode(row, &mut views);
    let stored: Vec<Vec<u8>> = views.iter().map(|cell| cell[..head.cell_len()].to_vec()).collect();
    let cells: Vec<Cell<'_>> =
        stored.iter().zip(0..).map(|(bytes, fragment)| Cell { fragment, bytes }).collect();
    let (mut whole, mut degraded) = (RowDecoder::new(), RowDecoder::new());
    let (mut back, mut other) = (Pages::new(row.len()), Pages::new(row.len()));
    let (mut from, mut to) = (Pages::new(row.len()), Pages::new(row.len()));
    let mut encode = || {
        encoder.encode(row, &mut views);
    };
    let mut read = || {
        whole.read(&cells[..k], back.bytes()).expect("good cells");
    };
    let mut decode = || {
        degraded.read(&cells[p..], other.bytes()).expect("good cells");
    };
    let mut copy = || std::hint::black_box(to.bytes()).copy_from_slice(from.bytes());
    let works: [&mut dyn FnMut(); 4] = [&mut encode, &mut read, &mut decode, &mut copy];
    let [encode, read, decode, copy] =
        best(rounds, works).map(|seconds| row.len() as f64 / seconds / 1e6);
    let (codec, code) = (codec.name(), format!("{k},{p}"));
    let stored = (scheme.n() * head.cell_len()) as f64 / row.len() as f64;
    println!(
        "{codec:<6} {code:>4} {name:<6} {encode:>7.0} {read:>8.0} {decode:>8.0} {copy:>8.0} \
         {stored:>6.2}"
    );
}

/// Bytes that begin at a page.
struct Pages {
    held: Vec<u8>,
    len: usize,
}

impl Pages {
    fn new(len: usize) -> Pages {
        Pages { held: vec![0; len + 4096], len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let at = self.held.as_ptr().align_offset(4096);
        &mut self.held[at..][..self.len]
    }
}

/// Bytes that no codec makes shorter.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Data of which about half is saved: words of 8 to 31 bytes, of which 3 of 8 are drawn and the others
/// repeat one of the last 256.
fn half(len: usize) -> Vec<u8> {
    let mut drawn = noise(8 * len).into_iter();
    let mut next = || usize::from(drawn.next().expect("enough is drawn"));
    let mut words: Vec<Vec<u8>> = Vec::new();
    let mut data = Vec::with_capacity(len + 31);
    while data.len() < len {
        if words.is_empty() || next() % 8 < 3 {
            words.push((0..8 + next() % 24).map(|_| next() as u8).collect());
        }
        let back = next() % words.len().min(256);
        data.extend_from_slice(&words[words.len() - 1 - back]);
    }
    data.truncate(len);
    data
}
