//! The functions of `craton.h`.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use runtime::Env;

use crate::cluster;
use crate::error::{self, Error, errno};
use crate::memory::Memory;
use crate::volume::{Call, Volume};

/// An open volume, as C has it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct craton_volume(Volume);

/// A completion: its argument, and the result.
#[allow(non_camel_case_types, reason = "the name in C")]
pub type craton_done = Option<unsafe extern "C" fn(arg: *mut c_void, result: i64)>;

/// Receiver of a call's end.
struct Completion {
    done: unsafe extern "C" fn(arg: *mut c_void, result: i64),
    arg: *mut c_void,
}

// SAFETY: by the contract of `craton.h` the completion runs on a thread of the library.
unsafe impl Send for Completion {}

impl Completion {
    fn tell(self, result: i64) {
        // SAFETY: the program has given it for this call, and it is called once.
        unsafe { (self.done)(self.arg, result) }
    }
}

fn answer(result: Result<i64, Error>) -> i64 {
    result.unwrap_or_else(|error| error::keep(&error))
}

fn invalid(words: &str) -> Error {
    Error::new(errno::EINVAL, words)
}

/// A call that waits must not come from an executor's thread: it would wait for itself.
fn may_wait() -> Result<(), Error> {
    match Env::try_current() {
        None => Ok(()),
        Some(_) => Err(Error::new(errno::EDEADLK, "a completion must not wait: use ..._async")),
    }
}

/// # Safety
/// `text` is null or a string of C.
unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<Option<&'a str>, Error> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    text.map(Some).map_err(|_| invalid(&format!("{what} is no text in UTF-8")))
}

/// # Safety
/// `volume` is null or open.
unsafe fn volume<'a>(volume: *const craton_volume) -> Result<&'a Volume, Error> {
    // SAFETY: the caller's promise.
    unsafe { volume.as_ref() }.map(|volume| &volume.0).ok_or_else(|| invalid("volume is NULL"))
}

/// # Safety
/// `buf` is null or valid for `len` bytes until the call has ended.
unsafe fn memory(buf: *mut c_void, len: usize) -> Result<Memory, Error> {
    if buf.is_null() && len > 0 {
        return Err(invalid("buf is NULL"));
    }
    if i64::try_from(len).is_err() {
        return Err(invalid("len is above INT64_MAX"));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { Memory::new(buf, len) })
}

/// # Safety
/// As [`volume`]; what `call` points to is valid until it returns.
unsafe fn wait(open: *mut craton_volume, call: Result<Call, Error>, offset: u64) -> i64 {
    answer(may_wait().and_then(|()| {
        // SAFETY: the caller's promise.
        unsafe { volume(open) }?.call(call?, offset)
    }))
}

/// # Safety
/// As [`volume`]; what `call` points to is valid until `done` is called.
unsafe fn start(
    open: *mut craton_volume,
    call: Result<Call, Error>,
    offset: u64,
    done: craton_done,
    arg: *mut c_void,
) -> c_int {
    let begin = || {
        let done = done.ok_or_else(|| invalid("done is NULL"))?;
        let completion = Completion { done, arg };
        // SAFETY: the caller's promise.
        let open = unsafe { volume(open) }?;
        open.start(call?, offset, move |result| completion.tell(answer(result)))?;
        Ok(0)
    };
    answer(begin()) as c_int
}

/// See `craton.h`.
///
/// # Safety
/// Strings are null or strings of C; `out` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn craton_open(
    cluster: *const c_char,
    key_file: *const c_char,
    volume: *const c_char,
    flags: c_uint,
    out: *mut *mut craton_volume,
) -> c_int {
    let open = || {
        may_wait()?;
        if out.is_null() {
            return Err(invalid("out is NULL"));
        }
        // SAFETY: it is not null, so it is valid.
        unsafe { out.write(ptr::null_mut()) };
        if flags != 0 {
            return Err(invalid("flags must be 0"));
        }
        // SAFETY: the caller's promise.
        let (cluster, key_file, name) = unsafe {
            (text(cluster, "cluster")?, text(key_file, "key_file")?, text(volume, "volume")?)
        };
        let set = std::env::var("CRATON_CLUSTER").ok();
        let cluster = cluster.or(set.as_deref()).filter(|cluster| !cluster.is_empty());
        let cluster =
            cluster.ok_or_else(|| invalid("no cluster is named, and CRATON_CLUSTER is not set"))?;
        let name = name.ok_or_else(|| invalid("volume is NULL"))?;
        let volume = Volume::open(cluster::find(cluster, key_file)?, name.to_owned())?;
        // SAFETY: as above.
        unsafe { out.write(Box::into_raw(Box::new(craton_volume(volume)))) };
        Ok(0)
    };
    answer(open()) as c_int
}

/// See `craton.h`.
///
/// # Safety
/// `volume` is null, or open and used by no other caller from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn craton_close(volume: *mut craton_volume) -> c_int {
    let close = || {
        if volume.is_null() {
            return Err(invalid("volume is NULL"));
        }
        may_wait()?;
        // SAFETY: `craton_open` has made it so, and this is the last call with it.
        let volume = unsafe { Box::from_raw(volume) };
        volume.0.close()?;
        Ok(0)
    };
    answer(close()) as c_int
}

/// See `craton.h`.
///
/// # Safety
/// `open` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn craton_size(open: *const craton_volume) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { volume(open) }.map_or(0, Volume::bytes)
}

/// See `craton.h`.
///
/// # Safety
/// `open` is null or open; `buf` is null or valid for writes of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn craton_read(
    open: *mut craton_volume,
    buf: *mut c_void,
    len: usize,
    offset: u64,
) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { wait(open, memory(buf, len).map(Call::Read), offset) }
}

/// See `craton.h`.
///
/// # Safety
/// `open` is null or open; `buf` is null or valid for reads of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn craton_write(
    open: *mut craton_volume,
    buf: *const c_void,
    len: usize,
    offset: u64,
) -> i64 {
    // SAFETY: the caller's promise; it is only read.
    unsafe { wait(open, memory(buf.cast_mut(), len).map(Call::Write), offset) }
}

/// See `craton.h`.
///
/// # Safety
/// `open` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn craton_flush(open: *mut craton_volume) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { wait(open, Ok(Call::Flush), 0) as c_int }
}

/// See `craton.h`.
///
/// # Safety
/// `open` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn craton_discard(open: *mut craton_volume, offset: u64, len: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { wait(open, Ok(Call::Discard(len)), offset) as c_int }
}

/// See `craton.h`.
///
/// # Safety
/// As [`craton_read`], until `done` is called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn craton_read_async(
    open: *mut craton_volume,
    buf: *mut c_void,
    len: usize,
    offset: u64,
    done: craton_done,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { start(open, memory(buf, len).map(Call::Read), offset, done, arg) }
}

/// See `craton.h`.
///
/// # Safety
/// As [`craton_write`], until `done` is called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn craton_write_async(
    open: *mut craton_volume,
    buf: *const c_void,
    len: usize,
    offset: u64,
    done: craton_done,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise; it is only read.
    unsafe { start(open, memory(buf.cast_mut(), len).map(Call::Write), offset, done, arg) }
}

/// See `craton.h`.
///
/// # Safety
/// `open` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn craton_flush_async(
    open: *mut craton_volume,
    done: craton_done,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { start(open, Ok(Call::Flush), 0, done, arg) }
}

/// See `craton.h`.
///
/// # Safety
/// `open` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn craton_discard_async(
    open: *mut craton_volume,
    offset: u64,
    len: u64,
    done: craton_done,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { start(open, Ok(Call::Discard(len)), offset, done, arg) }
}

/// See `craton.h`.
#[unsafe(no_mangle)]
pub extern "C" fn craton_error() -> *const c_char {
    error::last()
}

/// See `craton.h`.
#[unsafe(no_mangle)]
pub extern "C" fn craton_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
