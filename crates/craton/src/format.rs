//! Formatting of stores: by `craton store format`, and once for each store that `craton up`,
//! `craton cluster up` and `craton cluster add` create.

use std::path::Path;

use crate::exit::{Failure, io};

pub use roles::format::{Found, directory, failure, options};

/// Inspects a directory.
pub fn look(dir: &Path) -> Result<Found, Failure> {
    let failed = |error| io("list", dir, &error);
    let names: Result<Vec<_>, _> = std::fs::read_dir(dir)
        .map_err(failed)?
        .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
        .collect();
    Ok(Found::of(names.map_err(failed)?.iter().map(String::as_str)))
}
