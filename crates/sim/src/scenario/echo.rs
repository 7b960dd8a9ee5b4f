//! The runtime alone: a server that stores what it receives and answers, a client that counts, and
//! a power cut between. Everything answered is there afterwards.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use runtime::sim::{CrashMode, Sim};
use runtime::{Class, Env, OpenOptions, Stream, WriteMode};

const PORT: u16 = 7000;
const PAGE: usize = 4096;
const RECORDS: u64 = 200;

pub(super) async fn run(sim: Sim) -> Result<(), String> {
    let (server, client) = (sim.add_host("server"), sim.add_host("client"));
    let answered = Rc::new(Cell::new(0));
    let addr = sim.addr(server, PORT);
    let env = sim.boot(server);
    env.create_dir_all(Path::new("/data")).await.map_err(|error| error.to_string())?;
    env.clone().spawn(Class::Foreground, "echo server", serve(env));
    let env = sim.boot(client);
    let count = answered.clone();
    let load = env.spawn(Class::Foreground, "echo client", {
        let env = env.clone();
        async move {
            let Ok(mut stream) = env.connect(addr).await else { return };
            for number in 0..RECORDS {
                let sent = env.pool().copy_of(&number.to_le_bytes()).expect("within the budget");
                if stream.write.write_all(vec![sent]).await.is_err() {
                    return;
                }
                if read_number(&env, &mut stream).await != Some(number) {
                    return;
                }
                count.set(number + 1);
            }
        }
    });
    let pause = sim.with_rng(|rng| Duration::from_micros(rng.between(100, 60_000)));
    sim.sleep(pause).await;
    sim.crash(server, CrashMode::Power);
    let env = sim.boot(server);
    let file = env.open_file(Path::new("/data/log"), OpenOptions::READ).await;
    let found = match file {
        Ok(file) => {
            let mut found = 0;
            loop {
                let buf = env.pool().alloc(PAGE).expect("within the budget");
                let (count, buf) = file.read_at(found * PAGE as u64, buf).await;
                let whole = count.map_err(|error| error.to_string())? == PAGE;
                if !whole || buf[..8] != (found + 1).to_le_bytes() {
                    break;
                }
                found += 1;
            }
            found
        }
        Err(_) => 0,
    };
    sim.crash(client, CrashMode::Process);
    drop(load);
    if found < answered.get() {
        return Err(format!("{} records were answered, {found} are there", answered.get()));
    }
    Ok(())
}

async fn serve(env: Env) {
    let listener = env.listen(([0, 0, 0, 0], PORT).into()).await.expect("the port is free");
    let options = OpenOptions::CREATE.direct();
    let file = env.open_file(Path::new("/data/log"), options).await.expect("the disk is good");
    env.sync_dir(Path::new("/data")).await.expect("the disk is good");
    while let Ok(mut stream) = listener.accept().await {
        while let Some(number) = read_number(&env, &mut stream).await {
            let mut page = env.pool().alloc_zeroed(PAGE).expect("within the budget");
            page[..8].copy_from_slice(&(number + 1).to_le_bytes());
            let at = number * PAGE as u64;
            // Half the records are synced by the write, half by a sync of their own.
            let mode = if number % 2 == 0 { WriteMode::Durable } else { WriteMode::Cached };
            if file.write_at(at, page.freeze(), mode).await.is_err() {
                return;
            }
            if mode == WriteMode::Cached && file.sync().await.is_err() {
                return;
            }
            let answer = env.pool().copy_of(&number.to_le_bytes()).expect("within the budget");
            if stream.write.write_all(vec![answer]).await.is_err() {
                break;
            }
        }
    }
}

async fn read_number(env: &Env, stream: &mut Stream) -> Option<u64> {
    let mut buf = env.pool().alloc(8).expect("within the budget");
    let mut filled = 0;
    while filled < 8 {
        let (count, back) = stream.read.read(buf, filled).await;
        buf = back;
        filled += count.ok().filter(|&count| count > 0)?;
    }
    Some(u64::from_le_bytes(buf[..8].try_into().expect("8 bytes")))
}
