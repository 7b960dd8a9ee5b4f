//! Buffers of the process's budget, with waiting.

use std::time::Duration;

use base::{Fault, Kind};
use runtime::{BufMut, Env};

/// Pause before another try for a buffer, when the process's budget is spent.
const ALLOC_PAUSE: Duration = Duration::from_millis(2);

/// A buffer of `len` bytes, as soon as the process's budget has room. `Invalid` when `len` exceeds
/// the whole budget.
pub async fn alloc(env: &Env, len: usize) -> Result<BufMut, Fault> {
    loop {
        match env.pool().alloc(len) {
            Ok(buf) => return Ok(buf),
            Err(refused) if !refused.may_pass() => {
                return Err(Fault::new(Kind::Invalid, refused.to_string()));
            }
            Err(_) => {
                env.mark("block: no memory");
                env.sleep(ALLOC_PAUSE).await;
            }
        }
    }
}
