//! Socket addresses as the kernel wants them.

#![allow(unsafe_code)]

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::limits::UNIX_PATH_MAX;

/// A `sockaddr` of the families that we use.
pub(crate) struct RawAddr {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl RawAddr {
    /// Room for an address that the kernel fills in.
    pub(crate) fn empty() -> Box<RawAddr> {
        // SAFETY: all-zero bytes are a valid sockaddr_storage (AF_UNSPEC).
        Box::new(RawAddr { storage: unsafe { std::mem::zeroed() }, len: 0 })
    }

    pub(crate) fn new(addr: SocketAddr) -> Box<RawAddr> {
        let mut raw = RawAddr::empty();
        let place: *mut libc::sockaddr_storage = &mut raw.storage;
        match addr {
            SocketAddr::V4(v4) => {
                let value = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: a sockaddr_storage is large and aligned enough for any sockaddr.
                unsafe { place.cast::<libc::sockaddr_in>().write(value) };
                raw.len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            }
            SocketAddr::V6(v6) => {
                let value = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: as above.
                unsafe { place.cast::<libc::sockaddr_in6>().write(value) };
                raw.len = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            }
        }
        raw
    }

    /// The name of a Unix socket: a path of at most
    /// [`UNIX_PATH_MAX`](crate::limits::UNIX_PATH_MAX) bytes.
    pub(crate) fn of_path(path: &Path) -> io::Result<Box<RawAddr>> {
        let bytes = path.as_os_str().as_bytes();
        if bytes.is_empty() || bytes.len() > UNIX_PATH_MAX || bytes.contains(&0) {
            let why = format!("the path of a socket has 1 to {UNIX_PATH_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let mut value = libc::sockaddr_un { sun_family: libc::AF_UNIX as _, sun_path: [0; 108] };
        for (place, byte) in value.sun_path.iter_mut().zip(bytes) {
            *place = *byte as libc::c_char;
        }
        let mut raw = RawAddr::empty();
        let place: *mut libc::sockaddr_storage = &mut raw.storage;
        // SAFETY: a sockaddr_storage is large and aligned enough for any sockaddr.
        unsafe { place.cast::<libc::sockaddr_un>().write(value) };
        raw.len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        Ok(raw)
    }

    pub(crate) fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    pub(crate) fn len(&self) -> libc::socklen_t {
        self.len
    }

    /// Pointers through which the kernel stores an address.
    pub(crate) fn for_kernel(&mut self) -> (*mut libc::sockaddr, *mut libc::socklen_t) {
        self.len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        ((&raw mut self.storage).cast(), &raw mut self.len)
    }

    /// The address, when it is one of the internet.
    pub(crate) fn get(&self) -> Option<SocketAddr> {
        let place: *const libc::sockaddr_storage = &self.storage;
        match i32::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the family says which type the storage holds; it is large enough.
                let v4 = unsafe { place.cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let v6 = unsafe { place.cast::<libc::sockaddr_in6>().read() };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_kernel_form() {
        for text in ["127.0.0.1:80", "10.2.3.4:65535", "[::1]:9", "[fe80::1234]:4"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(RawAddr::new(addr).get(), Some(addr));
        }
        assert_eq!(RawAddr::empty().get(), None);
    }
}
