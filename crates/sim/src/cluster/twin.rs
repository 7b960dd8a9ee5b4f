//! A second process under a master's number, with a copy of its directory.

use std::io;
use std::path::Path;

use master::Master;
use runtime::sim::{CrashMode, HostId};
use runtime::{Class, Env, OpenOptions, WriteMode};

use super::{Cluster, MASTER_DIR, MASTER_PORT};

/// Bytes that are copied at a time.
const STEP: usize = 1 << 20;

/// A file's length, and its parts that are not zero, each with its offset.
type Parts = (u64, Vec<(u64, Vec<u8>)>);

impl Cluster {
    /// Copies a master's directory to another host, which runs nothing. The master starts again behind
    /// that.
    pub async fn copy_master(&self, index: usize, to: HostId) -> Result<(), String> {
        let (sim, from) = (&self.0.sim, self.0.masters[index]);
        self.crash_master(index, CrashMode::Process);
        let (source, target) = (sim.boot(from), sim.boot(to));
        let files = sim.files(from).into_iter().map(|(path, _)| path);
        for path in files.filter(|path| path.starts_with(MASTER_DIR)) {
            let text = |error: io::Error| format!("{}: {error}", path.display());
            let (env, file) = (source.clone(), path.clone());
            let read = async move { read_parts(&env, &file).await };
            let read = source.spawn(Class::Foreground, "copy", read).await;
            let parts = read.map_err(|_| "the master's host went down")?.map_err(text)?;
            let (env, file) = (target.clone(), path.clone());
            let write = async move { write_parts(&env, &file, parts).await };
            let written = target.spawn(Class::Foreground, "copy", write).await;
            written.map_err(|_| "the other host went down")?.map_err(text)?;
        }
        sim.crash(from, CrashMode::Process);
        sim.crash(to, CrashMode::Process);
        self.boot_master(index);
        Ok(())
    }

    /// Starts another process of a master, on a host with a copy of its directory and at that host's
    /// address; the reason, when it does not start.
    pub async fn start_twin(&self, index: usize, host: HostId) -> Result<Master, String> {
        let mut config = self.master_config(index);
        config.listen = self.0.sim.addr(host, MASTER_PORT);
        let (env, this) = (self.0.sim.boot(host), self.clone());
        let inner = env.clone();
        let starting = async move { this.start_master(&inner, &config).await };
        let started = env.spawn(Class::Foreground, "start twin", starting).await;
        started.map_err(|_| "its host went down".to_owned())?.map_err(|error| error.to_string())
    }
}

async fn read_parts(env: &Env, path: &Path) -> io::Result<Parts> {
    let file = env.open_file(path, OpenOptions::READ).await?;
    let (len, mut parts) = (file.len().await?, Vec::new());
    for at in (0..len).step_by(STEP) {
        let step = STEP.min((len - at) as usize);
        let (read, buf) = file.read_at(at, env.pool().alloc(step).map_err(io::Error::other)?).await;
        let bytes = &buf[..read?];
        if bytes.iter().any(|&byte| byte != 0) {
            parts.push((at, bytes.to_vec()));
        }
    }
    Ok((len, parts))
}

async fn write_parts(env: &Env, path: &Path, (len, parts): Parts) -> io::Result<()> {
    let dir = path.parent().expect("it is in a directory");
    env.create_dir_all(dir).await?;
    let file = env.open_file(path, OpenOptions::CREATE).await?;
    file.set_len(len).await?;
    for (at, bytes) in parts {
        let bytes = env.pool().copy_of(&bytes).map_err(io::Error::other)?;
        file.write_at(at, bytes, WriteMode::Cached).await?;
    }
    file.sync().await?;
    env.sync_dir(dir).await
}
