use proptest::prelude::*;

use super::*;
use crate::crc32c;

fn size(log2: u8) -> BlockSize {
    BlockSize::new(log2).expect("within limits")
}

fn noise(len: usize, mut state: u32) -> Vec<u8> {
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn packed(codec: Codec, block: &[u8]) -> Vec<u8> {
    let mut out = vec![0xee; block.len() + BLOCK_HEAD + 9];
    let len = Packer::new(codec, size(16)).pack(block, &mut out);
    assert!(out[len..].iter().all(|&byte| byte == 0xee), "bytes behind the block were touched");
    out.truncate(len);
    out
}

fn unpacked(stored: &[u8], len: usize) -> Result<Vec<u8>, BlockError> {
    let mut block = vec![0x55; len];
    Unpacker::new().unpack(stored, &mut block).map(|_| block)
}

#[test]
fn blocks_of_any_content_and_length_come_back() {
    for log2 in BLOCK_LOG2_MIN..=BLOCK_LOG2_MAX {
        for codec in Codec::ALL {
            let (mut packer, mut unpacker) = (Packer::new(codec, size(log2)), Unpacker::new());
            for len in [1, 2, 100, 4095, 4096, size(log2).bytes()] {
                let text = b"one row of a table, ".iter().copied().cycle().take(len).collect();
                for block in [noise(len, 7), vec![0; len], text] {
                    let mut stored = vec![0; len + BLOCK_HEAD];
                    let used = packer.pack(&block, &mut stored);
                    let mut back = vec![1; len];
                    assert_eq!(unpacker.unpack(&stored, &mut back), Ok(used));
                    assert!(back == block, "{} of {len} bytes", codec.name());
                }
            }
        }
    }
}

#[test]
fn block_that_saves_less_than_a_sixteenth_is_stored_plain() {
    assert!(is_saving(15, 16) && !is_saving(16, 16) && !is_saving(17, 16));
    assert!(is_saving(3840, 4096) && !is_saving(3841, 4096) && !is_saving(4097, 4096));
    for codec in [Codec::Lz4, Codec::Zstd] {
        let noise = noise(4096, 1);
        let stored = packed(codec, &noise);
        assert_eq!((stored.len(), stored[3]), (4096 + BLOCK_HEAD, Codec::Plain as u8));
        let stored = packed(codec, &[[0; 1024].as_slice(), &noise[..3072]].concat());
        assert!(stored.len() < 3300 && stored[3] == codec as u8);
    }
}

#[test]
fn head_has_its_bytes_in_their_places() {
    let head = BlockHead { stored_len: 0x1234, codec: Codec::Lz4, crc: 0x8899_aabb };
    let bytes = head.encode();
    assert_eq!(bytes, [0x34, 0x12, 0, 1, 0xbb, 0xaa, 0x99, 0x88]);
    assert_eq!(BlockHead::decode(&bytes, 0x2000), Ok(head));
}

#[test]
fn heads_that_no_packer_writes_are_refused() {
    let decode = |stored: u32, codec: u8, logical: usize| {
        let [a, b, c, _] = stored.to_le_bytes();
        BlockHead::decode(&[a, b, c, codec, 0, 0, 0, 0], logical).err()
    };
    let length = |stored, logical| Some(BlockError::Length { stored, logical });
    assert_eq!(decode(4096, 3, 4096), Some(BlockError::Codec(3)));
    assert_eq!(decode(4095, 0, 4096), length(4095, 4096));
    assert_eq!(decode(3841, 1, 4096), length(3841, 4096));
    assert_eq!(decode(0, 1, 4096), length(0, 4096));
    assert_eq!(decode(0xff_ffff, 2, 4096), length(0xff_ffff, 4096));
    assert_eq!(decode(1 << 17, 0, 1 << 17), length(1 << 17, 1 << 17));
    assert_eq!((decode(3840, 1, 4096), decode(4096, 0, 4096)), (None, None));
}

#[test]
fn content_of_another_length_than_the_blocks_is_refused() {
    let block = vec![3; 5000];
    for codec in [Codec::Lz4, Codec::Zstd] {
        let stored = packed(codec, &block);
        assert_eq!(unpacked(&stored, 5000), Ok(block.clone()));
        // It would not fill the buffer, or go beyond it.
        assert_eq!(unpacked(&stored, 5001), Err(BlockError::Damaged));
        assert_eq!(unpacked(&stored, 4999), Err(BlockError::Damaged));
        let cut = unpacked(&stored[..stored.len() - 1], 5000).expect_err("a byte is missing");
        assert!(matches!(cut, BlockError::Length { .. }));
        assert_eq!(unpacked(&stored[..7], 5000), Err(BlockError::Damaged));
    }
}

#[test]
fn changed_block_of_the_same_length_fails_by_its_checksum() {
    let mut stored = packed(Codec::Plain, &[9; 4096]);
    stored[BLOCK_HEAD + 100] ^= 1;
    let error = unpacked(&stored, 4096).expect_err("a bit differs");
    assert!(matches!(error, BlockError::Checksum { want, .. } if want == crc32c(&[9; 4096])));
    assert_eq!(error.kind(), Kind::Corrupt);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// One changed bit anywhere in a stored block: never other bytes.
    #[test]
    fn changed_bit_never_gives_other_bytes(
        codec in prop::sample::select(&Codec::ALL[..]),
        len in 1usize..6000,
        at in any::<prop::sample::Index>(),
        bit in 0..8u8,
    ) {
        let block: Vec<u8> = (0..len).map(|at| (at / 40 * (at % 40)) as u8).collect();
        let mut stored = packed(codec, &block);
        let at = at.index(stored.len());
        stored[at] ^= 1u8 << bit;
        if let Ok(back) = unpacked(&stored, len) {
            // A decoder may ignore a bit, as of a reserved field.
            prop_assert!(back == block && at >= BLOCK_HEAD);
        }
    }
}
