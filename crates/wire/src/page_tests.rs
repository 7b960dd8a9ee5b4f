//! The byte tables of `docs/formats/wire.md` that this crate writes.

use std::ops::Range;

use base::limits::{SECTOR, SECTOR_DATA_MAX};
use base::{ChunkId, Epoch};
use codec::block::Codec;
use codec::crc32c;

use crate::handshake::ClusterKey;
use crate::row::CellPart;
use crate::sector::{
    FLAG_FIRST, FLAG_LAST, Footer, SectorKind, ServerPart, chain, client_crc, format_sector,
    parse_footer, server_part, set_server_part, verify_sector,
};
use crate::token::{Issuer, IssuerTime, Rights, TokenKey};

/// The rows of the table under a heading: field and place. They leave no gap and end at `end`.
fn documented(heading: &str, column: usize, end: usize) -> Vec<(String, Range<usize>)> {
    let page = include_str!("../../../docs/formats/wire.md");
    let section = page.split("\n## ").find(|section| section.starts_with(heading));
    let rows = section.expect("the section is there").lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (at, bytes): (usize, usize) = (cells.get(1)?.parse().ok()?, cells[2].parse().ok()?);
        Some((cells[column].to_owned(), at..at + bytes))
    });
    let rows: Vec<_> = rows.collect();
    let mut next = 0;
    for (field, range) in &rows {
        assert_eq!(range.start, next, "{field} follows without a gap");
        next = range.end;
    }
    assert_eq!(next, end, "{heading}");
    rows
}

/// A change of one field alone shows at its first byte and nowhere but in its row, and in `sums`.
fn compare(rows: &[(String, Range<usize>)], sums: &[&str], changes: Vec<(&str, Vec<u8>, Vec<u8>)>) {
    let row = |name: &str| {
        let found = rows.iter().find(|(field, _)| field == name);
        found.unwrap_or_else(|| panic!("no row {name}")).1.clone()
    };
    for (field, before, after) in changes {
        let differs: Vec<usize> = (0..before.len()).filter(|&at| before[at] != after[at]).collect();
        let of_field: Vec<_> = differs.iter().filter(|at| row(field).contains(at)).collect();
        assert_eq!(of_field.first(), Some(&&row(field).start), "{field}");
        let allowed =
            |at: &usize| row(field).contains(at) || sums.iter().any(|&sum| row(sum).contains(at));
        assert!(differs.iter().all(allowed), "{field}: {differs:?}");
    }
}

#[test]
fn footer_is_that_of_the_page() {
    let rows = documented("Sector", 4, SECTOR - SECTOR_DATA_MAX);
    let plain = Footer {
        chunk: ChunkId::new(0),
        epoch: Epoch::new(0),
        base: 0,
        offset: 0,
        len: 1,
        kind: SectorKind::Data,
        flags: 0,
    };
    let sector_of = |footer: &Footer| {
        let mut sector = vec![0; SECTOR];
        format_sector(&mut sector, footer);
        sector
    };
    let footer_of = |footer| sector_of(&footer)[SECTOR_DATA_MAX..].to_vec();
    let before = || footer_of(plain);
    let with = |part| {
        let mut sector = sector_of(&plain);
        set_server_part(&mut sector, part);
        sector[SECTOR_DATA_MAX..].to_vec()
    };
    let all = u64::MAX;
    let changes = vec![
        ("chunk", before(), footer_of(Footer { chunk: ChunkId::new(all), ..plain })),
        ("epoch", before(), footer_of(Footer { epoch: Epoch::new(all), ..plain })),
        ("base", before(), footer_of(Footer { base: all, ..plain })),
        ("offset", before(), footer_of(Footer { offset: u32::MAX, ..plain })),
        ("len", before(), footer_of(Footer { len: SECTOR_DATA_MAX as u16, ..plain })),
        ("kind", before(), footer_of(Footer { kind: SectorKind::Index, ..plain })),
        ("flags", before(), footer_of(Footer { flags: FLAG_FIRST | FLAG_LAST, ..plain })),
        ("tag", before(), with(ServerPart { tag: u32::MAX, chain: 0 })),
        ("chain", before(), with(ServerPart { tag: 0, chain: u32::MAX })),
    ];
    let of_cells = ["fragment", "codec", "index"];
    assert_eq!(rows.len(), changes.len() + of_cells.len() + 1);
    compare(&rows, &["crc"], changes);
    let part = CellPart { fragment: 0, codec: Codec::Plain, index: 0 };
    let of = |part| footer_of(Footer { kind: SectorKind::Row(part), ..plain });
    let cells = vec![
        ("fragment", of(part), of(CellPart { fragment: 15, ..part })),
        ("codec", of(part), of(CellPart { codec: Codec::Zstd, ..part })),
        ("index", of(part), of(CellPart { index: 64, ..part })),
    ];
    compare(&rows, &["crc"], cells);
    assert_eq!(of(part)[30..36], [3, 0, 0, 2 << 4, 0, 0]);
    let place = |name: &str| rows.iter().find(|row| row.0 == name).expect("a row").1.clone();
    let crc = SECTOR_DATA_MAX + place("crc").start..SECTOR_DATA_MAX + place("crc").end;
    // Zero in other sectors, and verified to be.
    for at in of_cells.iter().flat_map(|name| place(name)) {
        let mut sector = sector_of(&plain);
        sector[SECTOR_DATA_MAX + at] = 1;
        let sum = crc32c(&sector[..crc.start]).to_le_bytes();
        sector[crc.clone()].copy_from_slice(&sum);
        assert!(verify_sector(&sector).is_err() && parse_footer(&sector).is_err(), "{at}");
    }
    let sector = sector_of(&Footer { base: 77, ..plain });
    let sum = crc32c(&sector[..crc.start]);
    assert_eq!(sector[crc], sum.to_le_bytes());
    assert_eq!((client_crc(&sector), server_part(&sector).chain), (sum, 0));
    let parts = [3u32, sum, 9].map(u32::to_le_bytes).concat();
    assert_eq!(chain(3, sum, 9), crc32c(&parts));
}

#[test]
fn token_is_that_of_the_page() {
    let rows = documented("Token", 3, 16);
    let key = TokenKey::derive(&ClusterKey::new([3; 32]));
    let token = |rights, epoch: u64, expiry| {
        let expiry = IssuerTime::wall(expiry);
        key.issue(ChunkId::new(7), rights, Epoch::new(epoch), expiry).0.to_vec()
    };
    let before = || token(Rights::READ, 0, 0);
    let changes = vec![
        ("rights", before(), token(Rights::SEAL, 0, 0)),
        ("expiry", before(), token(Rights::READ, 0, u64::from(u32::MAX))),
        ("epoch", before(), token(Rights::READ, u64::from(u32::MAX), 0)),
    ];
    assert_eq!(rows.len(), changes.len() + 1);
    compare(&rows, &["mac"], changes);
    let bits = [Rights::READ, Rights::APPEND, Rights::FENCE, Rights::SEAL]
        .map(|right| token(right, 0, 0)[0]);
    assert_eq!(bits, [1, 2, 4, 8]);
    let issuer = IssuerTime { issuer: Issuer::new(0x125), seconds: 9 };
    let token_of_issuer = key.issue(ChunkId::new(7), Rights::SEAL, Epoch::NONE, issuer);
    assert_eq!(token_of_issuer.0[0], 8 | 5 << 4 | 0x80);
    assert_eq!(token(Rights::READ, 1 << 32, 0)[rows[2].1.clone()], [255; 4], "no bound");
}
