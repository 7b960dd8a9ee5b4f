//! Sockets through the ring.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use runtime::{Class, Env, Stream};

use crate::support::runtime;

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

async fn pair(env: &Env) -> (Stream, Stream) {
    let listener = env.listen(any_port()).await.unwrap();
    let client = env.connect(listener.local_addr()).await.unwrap();
    let server = listener.accept().await.unwrap();
    (client, server)
}

async fn read_exact(env: &Env, stream: &mut Stream, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < len {
        let buf = env.pool().alloc((len - all.len()).min(65536)).unwrap();
        let (count, buf) = stream.read.read(buf, 0).await;
        let count = count.unwrap();
        assert_ne!(count, 0, "the stream ended early");
        all.extend_from_slice(&buf[..count]);
    }
    all
}

#[test]
fn bytes_arrive_in_order_however_they_are_cut() {
    let runtime = runtime();
    let env = runtime.env().clone();
    runtime.block_on(async {
        let (mut client, mut server) = pair(&env).await;
        // 12 MiB in 400 pieces: more than the socket's buffers, and several batches.
        let piece: Vec<u8> = (0..31_457u32).map(|at| (at * 7) as u8).collect();
        let buf = env.pool().copy_of(&piece).unwrap();
        let bufs: Vec<_> = (0..400).map(|cut| buf.slice(0..buf.len() - cut * 3)).collect();
        let want: Vec<u8> = bufs.iter().flat_map(|buf| buf.to_vec()).collect();
        let reader = env.spawn(Class::Foreground, "reader", {
            let (env, len) = (env.clone(), want.len());
            async move {
                let all = read_exact(&env, &mut server, len).await;
                let (end, _) = server.read.read(env.pool().alloc(16).unwrap(), 0).await;
                assert_eq!(end.unwrap(), 0);
                all
            }
        });
        client.write.write_all(bufs).await.unwrap();
        drop(client);
        assert!(reader.await.unwrap() == want);
    });
}

#[test]
fn a_dropped_send_goes_on_to_its_end() {
    let runtime = runtime();
    let env = runtime.env().clone();
    runtime.block_on(async {
        let (mut client, mut server) = pair(&env).await;
        // The last buffer of 4 MiB cannot be sent before the peer reads.
        let big = env.pool().alloc_zeroed(4 << 20).unwrap().freeze();
        let bufs = vec![big.clone(), big.clone(), big];
        {
            let mut send = Box::pin(client.write.write_all(bufs));
            assert!(futures_util::poll!(&mut send).is_pending());
            env.sleep(Duration::from_millis(20)).await;
            assert!(futures_util::poll!(&mut send).is_pending());
        }
        let reader = env.spawn(Class::Foreground, "reader", {
            let env = env.clone();
            async move { read_exact(&env, &mut server, (12 << 20) + 4).await }
        });
        client.write.write_all(vec![env.pool().copy_of(b"tail").unwrap()]).await.unwrap();
        let all = reader.await.unwrap();
        assert!(all[..12 << 20].iter().all(|&byte| byte == 0));
        assert_eq!(&all[12 << 20..], b"tail");
    });
}

#[test]
fn a_dropped_receive_is_cancelled_and_frees_its_buffer() {
    let runtime = runtime();
    let env = runtime.env().clone();
    runtime.block_on(async {
        let (mut client, mut server) = pair(&env).await;
        let used = env.pool().used();
        for _ in 0..100 {
            let wait = server.read.read(env.pool().alloc(4096).unwrap(), 0);
            assert!(env.timeout(Duration::from_micros(10), wait).await.is_err());
        }
        env.sleep(Duration::from_millis(20)).await;
        assert_eq!(env.pool().used(), used);
        client.write.write_all(vec![env.pool().copy_of(b"still").unwrap()]).await.unwrap();
        assert_eq!(read_exact(&env, &mut server, 5).await, b"still");
    });
}

#[test]
fn a_dropped_accept_loses_no_connection() {
    let runtime = runtime();
    let env = runtime.env().clone();
    runtime.block_on(async {
        let listener = env.listen(any_port()).await.unwrap();
        for _ in 0..20 {
            let wait = listener.accept();
            assert!(env.timeout(Duration::from_micros(100), wait).await.is_err());
            let client = env.connect(listener.local_addr()).await.unwrap();
            env.sleep(Duration::from_micros(500)).await;
            let (server, other) = futures_util::join!(
                env.timeout(Duration::from_secs(5), listener.accept()),
                env.timeout(Duration::from_millis(1), listener.accept()),
            );
            server.unwrap().unwrap();
            assert!(other.is_err());
            drop(client);
        }
    });
}

#[test]
fn refused_closed_and_reset() {
    let runtime = runtime();
    let env = runtime.env().clone();
    runtime.block_on(async {
        let listener = env.listen(any_port()).await.unwrap();
        let addr = listener.local_addr();
        let taken = env.listen(addr).await;
        assert_eq!(taken.unwrap_err().kind(), ErrorKind::AddrInUse);
        drop(listener);
        let refused = env.connect(addr).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        // The address is free for the next at once.
        env.listen(addr).await.unwrap();

        // A peer that is gone: writes fail in the end, and do not kill the process.
        let (mut client, server) = pair(&env).await;
        drop(server);
        let buf = env.pool().copy_of(&[0; 4096]).unwrap();
        let failed = async {
            while client.write.write_all(vec![buf.clone()]).await.is_ok() {
                env.sleep(Duration::from_millis(1)).await;
            }
        };
        env.timeout(Duration::from_secs(5), failed).await.unwrap();
    });
}

#[test]
fn one_direction_ends_alone() {
    let runtime = runtime();
    let env = runtime.env().clone();
    runtime.block_on(async {
        let (client, mut server) = pair(&env).await;
        let Stream { mut read, write, .. } = client;
        drop(write);
        let (end, _) = server.read.read(env.pool().alloc(16).unwrap(), 0).await;
        assert_eq!(end.unwrap(), 0);
        server.write.write_all(vec![env.pool().copy_of(b"bye").unwrap()]).await.unwrap();
        let (count, buf) = read.read(env.pool().alloc(16).unwrap(), 4).await;
        assert_eq!(&buf[4..4 + count.unwrap()], b"bye");
    });
}

#[test]
fn a_runtime_stops_with_everything_in_flight() {
    for _ in 0..20 {
        let runtime = runtime();
        let env = runtime.env().clone();
        runtime.block_on(async {
            let listener = env.listen(any_port()).await.unwrap();
            let addr = listener.local_addr();
            let accepting = env.clone();
            env.spawn(Class::Foreground, "accept", async move {
                loop {
                    let mut stream = listener.accept().await.unwrap();
                    let env = accepting.clone();
                    accepting.spawn(Class::Foreground, "read", async move {
                        let _ = stream.read.read(env.pool().alloc(4096).unwrap(), 0).await;
                        std::future::pending::<()>().await;
                    });
                }
            });
            for _ in 0..10 {
                let mut client = env.connect(addr).await.unwrap();
                let big = env.pool().alloc_zeroed(4 << 20).unwrap().freeze();
                env.spawn(Class::Background, "write", async move {
                    let _ = client.write.write_all(vec![big.clone(), big.clone(), big]).await;
                });
            }
            env.sleep(Duration::from_millis(2)).await;
        });
        drop(runtime);
        assert_eq!(env.pool().used(), 0);
    }
}

#[test]
fn unix_sockets_carry_bytes_and_go_with_their_listener() {
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    let dir = std::env::temp_dir().join(format!("craton-unix-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("socket");
    // A process that was killed has left its name there.
    drop(UnixListener::bind(&path).unwrap());
    let runtime = runtime();
    let env = runtime.env().clone();
    runtime.block_on(async {
        let listener = env.listen_unix(&path).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let taken = env.listen_unix(&path).await.unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        let (own, to) = (env.clone(), path.clone());
        let peer = env.spawn(Class::Foreground, "peer", async move {
            own.blocking("peer", move || {
                let mut peer = UnixStream::connect(to).unwrap();
                peer.write_all(&[7; 300_000]).unwrap();
                let mut back = Vec::new();
                peer.read_to_end(&mut back).unwrap();
                back
            })
            .await
        });
        // The connection that tested for a listener has gone again.
        let mut server = loop {
            let mut server = listener.accept().await.unwrap();
            let (first, buf) = server.read.read(env.pool().alloc(1).unwrap(), 0).await;
            if first.unwrap() == 1 {
                assert_eq!(buf[0], 7);
                break server;
            }
        };
        assert!(server.peer.ip().is_unspecified());
        assert!(read_exact(&env, &mut server, 299_999).await.iter().all(|&byte| byte == 7));
        let answer = env.pool().copy_of(&[9; 500_000]).unwrap();
        server.write.write_all(vec![answer]).await.unwrap();
        drop(server);
        assert!(peer.await.unwrap() == [9; 500_000]);
        drop(listener);
        assert!(!path.exists());
        std::fs::write(&path, b"a file").unwrap();
        let foreign = env.listen_unix(&path).await.unwrap_err();
        assert_eq!(foreign.kind(), ErrorKind::AlreadyExists);
        let long = dir.join("x".repeat(200));
        assert_eq!(env.listen_unix(&long).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    });
    std::fs::remove_dir_all(dir).unwrap();
}
