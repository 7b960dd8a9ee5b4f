//! Helpers for a crate with protobuf messages of its own. A generated type stays in its crate, so
//! the trait between the two forms is defined in each by [`protobuf!`](crate::protobuf).

/// Defines, private to the module that calls it, `trait Proto` between a message and its generated
/// form, `encode` and `decode` with the check of a message's length, `need` for a part that must be
/// there, `all` for lists; gives each named type the methods `encode` and `decode`; and defines
/// `fuzz_each`, which gives bytes to all of them. The crate imports `prost`.
#[macro_export]
macro_rules! protobuf {
    ($($name:ident),* $(,)?) => {
        /// A type with a protobuf form.
        trait Proto: Sized {
            type Pb: ::prost::Message + Default;

            fn to_pb(&self) -> Self::Pb;

            /// Checks every field.
            fn from_pb(pb: Self::Pb) -> Result<Self, $crate::control::WireError>;
        }

        fn encode<T: Proto>(value: &T) -> Vec<u8> {
            ::prost::Message::encode_to_vec(&value.to_pb())
        }

        fn decode<T: Proto>(bytes: &[u8]) -> Result<T, $crate::control::WireError> {
            use $crate::control::WireError;
            if bytes.len() > $crate::control::limits::MESSAGE_LEN_MAX {
                return Err(WireError::TooLong { len: bytes.len() });
            }
            let pb = <T::Pb as ::prost::Message>::decode(bytes);
            T::from_pb(pb.map_err(|_| WireError::Malformed)?)
        }

        /// A part that every message of its type has.
        fn need<T: Proto>(
            pb: Option<T::Pb>,
            field: &'static str,
        ) -> Result<T, $crate::control::WireError> {
            T::from_pb(pb.ok_or($crate::control::WireError::Missing { field })?)
        }

        fn all<T: Proto>(list: &[T]) -> Vec<T::Pb> {
            list.iter().map(T::to_pb).collect()
        }

        $(impl $name {
            /// The protobuf form.
            pub fn encode(&self) -> Vec<u8> {
                encode(self)
            }

            /// From the protobuf form, every field checked.
            pub fn decode(bytes: &[u8]) -> Result<Self, $crate::control::WireError> {
                decode(bytes)
            }
        })*

        /// Gives `bytes` to the decoder of every message. Accepted bytes must encode to bytes that
        /// decode to the same.
        fn fuzz_each(bytes: &[u8]) {
            $(if let Ok(value) = $name::decode(bytes) {
                let again = $name::decode(&value.encode());
                assert_eq!(again.as_ref(), Ok(&value), stringify!($name));
            })*
        }
    };
}
