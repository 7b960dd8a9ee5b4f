//! [`Conditions`] of a change: they concern the object that it would replace (`object-protocols.md`
//! 6.2). Pure.

use crate::error::Error;
use crate::ids::CallId;
use crate::object::Etag;

/// Tags of a condition's header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tags {
    /// `*`: any object.
    Any,
    /// One of these.
    Of(Vec<Etag>),
}

impl Tags {
    fn matches(&self, etag: &Etag) -> bool {
        match self {
            Tags::Any => true,
            Tags::Of(tags) => tags.contains(etag),
        }
    }
}

/// Conditions of a change.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Conditions {
    /// There is an object, and it has one of these tags.
    pub if_match: Option<Tags>,
    /// There is no object with one of these tags.
    pub if_none_match: Option<Tags>,
    /// The call that the change is an attempt at. An object that an earlier attempt of it has put is
    /// answered as this one's, not with [`Error::Precondition`]: clients repeat calls whose answer
    /// was lost (`object-protocols.md` 6.4).
    pub call: Option<CallId>,
}

impl Conditions {
    /// True when there is none: then no call matters either.
    pub fn is_empty(&self) -> bool {
        self.if_match.is_none() && self.if_none_match.is_none()
    }

    /// Decides on the tag of the object that is there.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchKey`] when an object is wanted and none is there, [`Error::Precondition`]
    /// when it is not as wanted.
    pub fn check(&self, current: Option<&Etag>) -> Result<(), Error> {
        if let Some(wanted) = &self.if_match {
            match current {
                None => return Err(Error::NoSuchKey),
                Some(etag) if !wanted.matches(etag) => return Err(Error::Precondition),
                Some(_) => {}
            }
        }
        if let Some(unwanted) = &self.if_none_match
            && current.is_some_and(|etag| unwanted.matches(etag))
        {
            return Err(Error::Precondition);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_decide_on_the_object_that_would_be_replaced() {
        let etag = |text: &str| Etag::new(text);
        let of = |texts: &[&str]| Some(Tags::Of(texts.iter().map(|text| etag(text)).collect()));
        let none: Option<Tags> = None;
        // (if_match, if_none_match, object's tag, outcome)
        let cases = [
            (none.clone(), none.clone(), None, Ok(())),
            (none.clone(), none.clone(), Some("a"), Ok(())),
            (Some(Tags::Any), none.clone(), None, Err(Error::NoSuchKey)),
            (Some(Tags::Any), none.clone(), Some("a"), Ok(())),
            (of(&["a"]), none.clone(), None, Err(Error::NoSuchKey)),
            (of(&["a", "b"]), none.clone(), Some("b"), Ok(())),
            (of(&["a"]), none.clone(), Some("b"), Err(Error::Precondition)),
            (none.clone(), Some(Tags::Any), None, Ok(())),
            (none.clone(), Some(Tags::Any), Some("a"), Err(Error::Precondition)),
            (none.clone(), of(&["a"]), Some("a"), Err(Error::Precondition)),
            (none.clone(), of(&["a"]), Some("b"), Ok(())),
            (of(&["a"]), of(&["a"]), Some("a"), Err(Error::Precondition)),
        ];
        for (if_match, if_none_match, current, outcome) in cases {
            let conditions = Conditions { if_match, if_none_match, call: None };
            let current = current.map(etag);
            assert_eq!(conditions.check(current.as_ref()), outcome, "{conditions:?} {current:?}");
        }
    }
}
