//! Fuzz target: a plain function over bytes. The tests replay it over the corpus in `tests/corpus/`; a
//! coverage-guided run calls the same.

/// A row of the block manager's table: the key's length, the key, the value.
pub fn fuzz_manager_row(bytes: &[u8]) {
    let Some((&len, rest)) = bytes.split_first() else { return };
    let Some((key, value)) = rest.split_at_checked(usize::from(len)) else { return };
    if let Ok(row) = crate::rows::Row::decode(key, value) {
        assert_eq!((row.key_bytes(), row.value_bytes()), (key.to_vec(), Some(value.to_vec())));
    }
}
