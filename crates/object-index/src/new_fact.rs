//! [`NewFact`]: what a change gives an object besides its content.

use object_proto::{Grant, ObjectFacts, ObjectTags};

use crate::fields::is_acl;

/// What an object gets.
pub(crate) enum NewFact {
    Tags(ObjectTags),
    Acl(Vec<Grant>),
}

impl NewFact {
    /// True when a row can be read back that has it.
    pub(crate) fn fits(&self) -> bool {
        match self {
            NewFact::Tags(_) => true,
            NewFact::Acl(acl) => is_acl(acl),
        }
    }

    pub(crate) fn give(self, facts: &mut ObjectFacts) {
        match self {
            NewFact::Tags(tags) => facts.tags = tags,
            NewFact::Acl(acl) => facts.acl = acl,
        }
    }
}
