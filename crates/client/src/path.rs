//! Paths as users write them.

use std::collections::VecDeque;

use base::limits::{NAME_MAX, PATH_MAX};

use crate::error::Error;

/// The names of an absolute path in order; ".." stays, "." and repeated slashes go.
pub(crate) fn names_of(path: &str) -> Result<VecDeque<String>, Error> {
    if !path.starts_with('/') {
        return Err(Error::invalid(path, "paths start with '/'"));
    }
    if path.len() > PATH_MAX {
        return Err(Error::invalid(&path[..path.floor_char_boundary(40)], "path is too long"));
    }
    let names = relative_names(path);
    if let Some(name) = names.iter().find(|name| name.len() > NAME_MAX) {
        let message = format!("'{name}' has more than {NAME_MAX} bytes; choose a shorter name");
        return Err(Error::invalid(path, message));
    }
    if path.contains('\0') {
        return Err(Error::invalid(path.replace('\0', "\\0"), "names have no zero bytes"));
    }
    Ok(names)
}

/// The names of a path, absolute or not, unchecked.
pub(crate) fn relative_names(path: &str) -> VecDeque<String> {
    let parts = path.split('/').filter(|name| !name.is_empty() && *name != ".");
    parts.map(str::to_owned).collect()
}

/// Directory and last name of a path that is to be made, moved or removed.
pub(crate) fn split_last(path: &str) -> Result<(VecDeque<String>, String), Error> {
    let mut names = names_of(path)?;
    match names.pop_back() {
        Some(name) if name == ".." => {
            Err(Error::invalid(path, "the last part of this path must be a name, not '..'"))
        }
        Some(name) => Ok((names, name)),
        None => Err(Error::invalid(path, "this is the root directory; name something in it")),
    }
}

/// `path` and a name below it.
pub(crate) fn join(path: &str, name: &str) -> String {
    format!("{}/{name}", path.trim_end_matches('/'))
}
