use proptest::prelude::*;

use super::*;
use crate::crc32c;
use crate::limits::{DATA_MAX, FRAGMENTS_MAX, PARITY_MAX};

/// The data that the script behind the known answers has: byte x of fragment j.
fn pattern(k: usize, len: usize) -> Vec<Vec<u8>> {
    let byte = |j: usize, x: usize| (31 * x + 77 * j + x / 7) as u8;
    (0..k).map(|j| (0..len).map(|x| byte(j, x)).collect()).collect()
}

fn views(held: &[Vec<u8>]) -> Vec<&[u8]> {
    held.iter().map(Vec::as_slice).collect()
}

fn views_mut(held: &mut [Vec<u8>]) -> Vec<&mut [u8]> {
    held.iter_mut().map(Vec::as_mut_slice).collect()
}

/// All fragments of a code over some data.
fn fragments(code: &Code, mut data: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut parity = vec![vec![0; data[0].len()]; code.p()];
    code.encode(&views(&data), &mut views_mut(&mut parity));
    data.append(&mut parity);
    data
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Computed by a script of another language from the field's definition, without tables.
#[test]
fn parity_has_the_known_bytes() {
    let short: &[(usize, &[&str])] = &[
        (1, &["001f3e5d7c9bbadaf91837567594b4d3f21130"]),
        (4, &["f827cf527c9d24e1a82cdf07eb67cdf2114858", "1456e8b481a21e33618ea63b544481fbcfa805"]),
        (
            8,
            &[
                "1f9f17cf32cd763b800094aef903e5e794ff10",
                "525127ed1a10968b3a7175b75a2f30caf9d9f9",
                "c29255b20d3a2fba3d8771d7323053b3a7220c",
            ],
        ),
        (
            12,
            &[
                "7da3dd93a51ab6a2b1e3df124539e6a5e2e827",
                "af6795ef6863c478da43e81183d51d6a9bddd2",
                "00e84b99668309186940a090de90e1f48805bd",
                "c94c39a7939ade5ae04831d5b315f534c25984",
            ],
        ),
    ];
    let long: &[(usize, &[u32])] = &[
        (4, &[0x568f_bc44, 0x8df9_c362]),
        (8, &[0x7229_673c, 0x3d01_5024, 0xad19_2029]),
        (12, &[0xc653_45d8, 0xe91a_e932, 0x2ac6_851a, 0xf64c_68d2]),
    ];
    for kernel in Kernel::available() {
        for (k, expected) in short {
            let code = Code::with_kernel(*k, expected.len(), kernel).expect("within limits");
            let parity: Vec<String> =
                fragments(&code, pattern(*k, 19))[*k..].iter().map(|one| hex(one)).collect();
            assert_eq!(parity, *expected, "{} with k = {k}", kernel.name());
        }
        for (k, expected) in long {
            let code = Code::with_kernel(*k, expected.len(), kernel).expect("within limits");
            let parity: Vec<u32> =
                fragments(&code, pattern(*k, 1000))[*k..].iter().map(|one| crc32c(one)).collect();
            assert_eq!(parity, *expected, "{} with k = {k}", kernel.name());
        }
    }
}

/// Each set of k fragments gives back each other fragment.
fn check_every_loss(k: usize, p: usize, len: usize, kernel: Kernel) {
    let code = Code::with_kernel(k, p, kernel).expect("within limits");
    let all = fragments(&code, pattern(k, len));
    for set in (0u32..1 << code.n()).filter(|set| set.count_ones() as usize == k) {
        let (from, to): (Vec<u8>, Vec<u8>) =
            (0..code.n() as u8).partition(|number| set >> number & 1 == 1);
        let decoder = code.decoder(Rebuild { from: &from, to: &to }).expect("k of n");
        let at_hand: Vec<&[u8]> = from.iter().map(|one| &all[usize::from(*one)][..]).collect();
        let mut rebuilt = vec![vec![0; len]; to.len()];
        decoder.decode(&at_hand, &mut views_mut(&mut rebuilt));
        for (number, bytes) in to.iter().zip(&rebuilt) {
            assert!(*bytes == all[usize::from(*number)], "{k}+{p}: {number} from {from:?}");
        }
    }
}

#[test]
fn any_p_losses_of_every_code_are_recovered() {
    for k in 1..=DATA_MAX {
        for p in 0..=PARITY_MAX {
            check_every_loss(k, p, 67, Kernel::fastest());
        }
    }
}

#[test]
fn every_kernel_recovers_what_another_encoded() {
    for kernel in Kernel::available() {
        check_every_loss(4, 2, 1033, kernel);
        check_every_loss(8, 3, 130, kernel);
    }
}

proptest! {
    /// Any order of fragments, any part of what is lost, any length, another kernel for each side.
    #[test]
    fn lost_fragments_come_back_in_any_order(
        k in 1..=DATA_MAX,
        p in 1..=PARITY_MAX,
        len in 0usize..700,
        order in Just((0..FRAGMENTS_MAX as u8).collect::<Vec<u8>>()).prop_shuffle(),
        seed in any::<u8>(),
    ) {
        let data = pattern(k, len).into_iter().map(|one| one.iter().map(|b| b ^ seed).collect());
        let all = fragments(&Code::new(k, p).expect("within limits"), data.collect());
        let order: Vec<u8> = order.into_iter().filter(|one| usize::from(*one) < k + p).collect();
        let (from, lost) = order.split_at(k);
        let to = &lost[..1 + usize::from(seed) % p];
        let kernel = Kernel::available().last().expect("the portable one");
        let code = Code::with_kernel(k, p, kernel).expect("within limits");
        let decoder = code.decoder(Rebuild { from, to }).expect("k of n");
        let at_hand: Vec<&[u8]> = from.iter().map(|one| &all[usize::from(*one)][..]).collect();
        let mut rebuilt = vec![vec![0; len]; to.len()];
        decoder.decode(&at_hand, &mut views_mut(&mut rebuilt));
        for (number, bytes) in to.iter().zip(&rebuilt) {
            prop_assert_eq!(bytes, &all[usize::from(*number)]);
        }
    }
}

#[test]
fn codes_beyond_a_limit_are_refused_by_its_name() {
    let refused = |k, p| Code::new(k, p).expect_err("beyond a limit");
    assert_eq!(refused(0, 2), CodeError::Data(0));
    assert_eq!(refused(DATA_MAX + 1, 2), CodeError::Data(13));
    assert_eq!(refused(4, PARITY_MAX + 1), CodeError::Parity(5));
    assert_eq!(refused(13, 2).to_string(), "a code has 1 to 12 data fragments, not 13");
    let widest = Code::new(DATA_MAX, PARITY_MAX).expect("the widest code");
    assert_eq!((widest.k(), widest.p(), widest.n()), (12, 4, FRAGMENTS_MAX));
}

#[test]
fn fragment_sets_that_cannot_be_decoded_are_refused() {
    let code = Code::new(4, 2).expect("within limits");
    let refused = |from: &[u8], to: &[u8]| code.decoder(Rebuild { from, to }).err();
    assert_eq!(refused(&[0, 1, 2], &[3]), Some(DecodeError::Count { have: 3, want: 4 }));
    assert_eq!(refused(&[0, 1, 2, 3, 4], &[5]), Some(DecodeError::Count { have: 5, want: 4 }));
    assert_eq!(refused(&[0, 1, 2, 6], &[3]), Some(DecodeError::Unknown(6)));
    assert_eq!(refused(&[0, 1, 2, 2], &[3]), Some(DecodeError::Repeated(2)));
    assert_eq!(refused(&[0, 1, 2, 3], &[3]), Some(DecodeError::Repeated(3)));
    assert_eq!(refused(&[5, 0, 1, 3], &[2, 4]), None);
}

#[test]
#[should_panic = "sources have 9 bytes"]
fn buffers_of_different_lengths_are_a_broken_promise() {
    let code = Code::new(2, 1).expect("within limits");
    code.encode(&[&[0; 9], &[0; 8]], &mut [&mut [0; 9]]);
}
