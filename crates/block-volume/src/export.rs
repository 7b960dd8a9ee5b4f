//! Exports of a front end.

use std::rc::Rc;

use crate::contract::{Answer, Device};

/// Facts of an export, known before it is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct About {
    /// Bytes.
    pub bytes: u64,
    /// Its description, as tools show it.
    pub description: String,
    /// Changes are refused.
    pub read_only: bool,
    /// Several connections may have it open at a time, and see each other's changes. Otherwise
    /// a second one is refused.
    pub shared: bool,
}

/// A page of the list of exports: a cluster may have very many.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Names {
    /// Names in order.
    pub names: Vec<String>,
    /// True when more follow the last one.
    pub more: bool,
}

/// Exports of a front end.
pub trait Exports {
    /// The next names above `after` of exports that may be listed, in order.
    fn names<'a>(&'a self, after: Option<&'a str>) -> Answer<'a, Names>;

    /// An export; `NotFound` when there is none of that name.
    fn about<'a>(&'a self, name: &'a str) -> Answer<'a, About>;

    /// Opens an export at its present length. Called for each connection: those that share an
    /// export may be given one device. It is closed when the last reference goes.
    fn open<'a>(&'a self, name: &'a str) -> Answer<'a, Rc<dyn Device>>;
}
