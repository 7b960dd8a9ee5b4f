//! Formatting of stores: by `craton store format`, and once for each store that `craton up`,
//! `craton cluster up` and `craton cluster add` create. Roles never format.

use std::path::Path;

use base::KIB;
use chunkstore::flash::FormatOptions;

use crate::exit::{Failure, io};

pub use roles::format::{Found, directory, failure, unmark};

/// The same allocation unit and capacity, in the terms of the chunk store.
pub fn options(unit_kib: u32, capacity: u64) -> FormatOptions {
    let unit = (u64::from(unit_kib) * KIB) as u32;
    let rest = if unit_kib == 16 { FormatOptions::small_files() } else { Default::default() };
    FormatOptions { unit, capacity, ..rest }
}

/// Inspects a directory.
pub fn look(dir: &Path) -> Result<Found, Failure> {
    let failed = |error| io("list", dir, &error);
    let names: Result<Vec<_>, _> = std::fs::read_dir(dir)
        .map_err(failed)?
        .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
        .collect();
    Ok(Found::of(names.map_err(failed)?.iter().map(String::as_str)))
}
