//! [`Network`]: a range of IP addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses that begin with the same bits. A range of IPv6 addresses that stand for IPv4's is one of
/// IPv4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Network {
    /// First address, and how many bits all have alike.
    V4(u32, u32),
    /// The same.
    V6(u128, u32),
}

/// Bits of `::ffff:0:0/96`, which stands for IPv4.
const MAPPED_BITS: u32 = 96;

impl Network {
    /// From an address, or an address and a number of bits behind a slash. Further bits of the
    /// address are ignored.
    pub(crate) fn parse(text: &str) -> Option<Network> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(number(bits)?)),
            None => (text, None),
        };
        match address.parse().ok()? {
            IpAddr::V4(address) => Network::v4(address, bits.unwrap_or(32)),
            IpAddr::V6(address) => {
                let bits = bits.unwrap_or(128);
                match (address.to_ipv4_mapped(), bits.checked_sub(MAPPED_BITS)) {
                    (Some(address), Some(bits)) => Network::v4(address, bits),
                    _ => Network::v6(address, bits),
                }
            }
        }
    }

    fn v4(address: Ipv4Addr, bits: u32) -> Option<Network> {
        let mask = u32::MAX.checked_shl(32u32.checked_sub(bits)?).unwrap_or(0);
        Some(Network::V4(address.to_bits() & mask, bits))
    }

    fn v6(address: Ipv6Addr, bits: u32) -> Option<Network> {
        let mask = u128::MAX.checked_shl(128u32.checked_sub(bits)?).unwrap_or(0);
        Some(Network::V6(address.to_bits() & mask, bits))
    }

    /// Whether an address is one of them.
    pub(crate) fn holds(self, address: IpAddr) -> bool {
        match (self, address.to_canonical()) {
            (Network::V4(_, bits), IpAddr::V4(address)) => Network::v4(address, bits) == Some(self),
            (Network::V6(_, bits), IpAddr::V6(address)) => Network::v6(address, bits) == Some(self),
            _ => false,
        }
    }

    /// So wide that a policy which allows it is public, as S3 has it: wider than 8 bits of IPv4, or
    /// than 32 of IPv6. No private range of IPv4 is.
    pub(crate) fn is_wide(self) -> bool {
        match self {
            Network::V4(_, bits) => bits < 8,
            Network::V6(_, bits) => bits < 32,
        }
    }
}

fn number(digits: &str) -> Option<u32> {
    let is_number = (1..=3).contains(&digits.len()) && digits.bytes().all(|c| c.is_ascii_digit());
    if is_number { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_hold_the_addresses_with_their_bits() {
        for (network, address, expected) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("10.1.2.3/8", "10.9.9.9", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.4", false),
            ("0.0.0.0/0", "1.2.3.4", true),
            ("0.0.0.0/0", "::1", false),
            ("0.0.0.0/0", "::ffff:1.2.3.4", true),
            ("::/0", "::1", true),
            ("::/0", "1.2.3.4", false),
            ("::/0", "::ffff:1.2.3.4", false),
            ("::ffff:10.0.0.0/104", "10.1.2.3", true),
            ("::ffff:10.0.0.0/104", "11.1.2.3", false),
            ("::ffff:10.1.2.3", "::ffff:a01:203", true),
            ("2001:db8::/32", "2001:db8:1::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("2001:DB8::1/128", "2001:db8::1", true),
        ] {
            let parsed = Network::parse(network).expect(network);
            assert_eq!(
                parsed.holds(address.parse().expect(address)),
                expected,
                "{network} {address}"
            );
        }
    }

    #[test]
    fn texts_that_are_no_network_are_refused() {
        for text in [
            "",
            "10.0.0",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0.0/-1",
            "/8",
            "::/129",
            "010.0.0.1",
            "10.0.0.*",
            "10.0.0.0/8/8",
            "10.0.0.0 /8",
            "x",
            "10.0.0.0/0008",
            "fe80::1%0",
        ] {
            assert_eq!(Network::parse(text), None, "{text}");
        }
    }

    #[test]
    fn wide_networks_are_wider_than_8_and_32_bits() {
        for (network, expected) in [
            ("0.0.0.0/0", true),
            ("0.0.0.0/7", true),
            ("10.0.0.0/8", false),
            ("::ffff:0.0.0.0/97", true),
            ("::/0", true),
            ("2001::/31", true),
            ("2001:db8::/32", false),
        ] {
            assert_eq!(Network::parse(network).map(Network::is_wide), Some(expected), "{network}");
        }
    }
}
