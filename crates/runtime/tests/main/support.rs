//! Helpers that the tests share.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use runtime::{PollPolicy, Runtime, RuntimeConfig};

/// A directory of its own, removed at the end.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Next to the build, because /tmp may be in memory, where direct I/O is refused.
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("runtime-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn runtime() -> Runtime {
    Runtime::new(RuntimeConfig::named("test")).unwrap()
}

pub fn runtime_with(poll: PollPolicy) -> Runtime {
    Runtime::new(RuntimeConfig { poll, ..RuntimeConfig::named("test") }).unwrap()
}
