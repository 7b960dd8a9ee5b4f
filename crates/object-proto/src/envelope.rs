//! [`Envelope`]: what rows have of how an object is encrypted (`object-protocols.md` 11.4).

/// Bytes of an envelope at most: a context of 1 KiB, the name of a key, and the wrapped key.
pub const ENVELOPE_MAX: usize = 2 << 10;

/// How an object is encrypted, and its wrapped key. Only gateways know what is in it
/// (`docs/formats/object.md`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Envelope(Vec<u8>);

impl Envelope {
    /// From its bytes; `None` unless they are 1 to [`ENVELOPE_MAX`].
    pub fn new(bytes: Vec<u8>) -> Option<Envelope> {
        (1..=ENVELOPE_MAX).contains(&bytes.len()).then_some(Envelope(bytes))
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelopes_are_bounded() {
        assert_eq!(Envelope::new(Vec::new()), None);
        assert!(Envelope::new(vec![0; ENVELOPE_MAX]).is_some());
        assert_eq!(Envelope::new(vec![0; ENVELOPE_MAX + 1]), None);
    }
}
