//! [`NewFact`]: what a change gives an object besides its content.

use object_proto::{Error, Grant, LockChange, ObjectFacts, ObjectTags};

use crate::fields::is_acl;

/// What an object gets.
pub(crate) enum NewFact {
    Tags(ObjectTags),
    Acl(Vec<Grant>),
    /// With the right to weaken a retention under governance, or without.
    Lock(LockChange, bool),
}

impl NewFact {
    /// True when a row can be read back that has it.
    pub(crate) fn fits(&self) -> bool {
        match self {
            NewFact::Tags(_) | NewFact::Lock(..) => true,
            NewFact::Acl(acl) => is_acl(acl),
        }
    }

    /// Gives it; retentions that end by `over_us` (microseconds since 1970) have ended.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`] for a lock that may not change so.
    pub(crate) fn give(self, facts: &mut ObjectFacts, over_us: u64) -> Result<(), Error> {
        match self {
            NewFact::Tags(tags) => facts.tags = tags,
            NewFact::Acl(acl) => facts.acl = acl,
            NewFact::Lock(change, bypass) => {
                facts.lock = facts.lock.changed(change, over_us, bypass)?;
            }
        }
        Ok(())
    }
}
