//! A small HTTP/1.1 server for metrics: GET only, one answer a connection.

use std::net::SocketAddr;
use std::rc::Rc;

use runtime::{Buf, BufMut, BufPool, Class, Duration, Env, OutOfMemory, Stream};

use crate::error::Error;

/// Bytes of a request's head at most.
const HEAD_MAX: usize = 8 << 10;
/// Bytes of one buffer of an answer.
const PART: usize = 64 << 10;
/// Time a peer has for a request, and for taking the answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Connections at once; further ones wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 16;

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Its media type.
    pub kind: &'static str,
    /// Its text.
    pub text: String,
}

/// Finds the page of a path, `None` when there is none.
pub type Pages = Rc<dyn Fn(&str) -> Option<Page>>;

/// Serves `pages` at `addr` until the executor ends.
pub async fn serve(env: &Env, addr: SocketAddr, pages: Pages) -> Result<SocketAddr, Error> {
    let listener = env.listen(addr).await.map_err(|error| {
        Error::Setup(format!(
            "cannot serve metrics on {addr} ({error}): end the process that uses the address, or \
             configure another"
        ))
    })?;
    let addr = listener.local_addr();
    let permits = Rc::new(runtime::sync::Semaphore::new(CONNECTIONS_MAX));
    let task_env = env.clone();
    env.spawn(Class::Background, "http: listen", async move {
        let env = task_env;
        loop {
            let Ok(permit) = permits.acquire().await else { return };
            permit.forget();
            let Ok(stream) = env.listen_pause(listener.accept()).await else {
                permits.add_permits(1);
                continue;
            };
            let (own, pages, permits) = (env.clone(), pages.clone(), permits.clone());
            env.spawn(Class::Background, "http: serve", async move {
                // The failure of a peer that is slow or disconnects concerns that peer only.
                let _ = own.timeout(TIMEOUT, answer(&own, stream, pages)).await;
                permits.add_permits(1);
            });
        }
    });
    Ok(addr)
}

/// A pause after a failed accept, so that a lack of descriptors does not make a busy loop.
trait ListenPause {
    async fn listen_pause<T>(
        &self,
        accept: impl Future<Output = std::io::Result<T>>,
    ) -> std::io::Result<T>;
}

impl ListenPause for Env {
    async fn listen_pause<T>(
        &self,
        accept: impl Future<Output = std::io::Result<T>>,
    ) -> std::io::Result<T> {
        let accepted = accept.await;
        if accepted.is_err() {
            self.sleep(Duration::from_millis(50)).await;
        }
        accepted
    }
}

async fn answer(env: &Env, mut stream: Stream, pages: Pages) {
    let Some(head) = read_head(env.pool(), &mut stream).await else { return };
    let text = respond(&head, &*pages);
    if let Ok(parts) = parts(env.pool(), text.as_bytes()) {
        let _ = stream.write.write_all(parts).await; // The peer may have gone.
    }
}

async fn read_head(pool: &BufPool, stream: &mut Stream) -> Option<Vec<u8>> {
    let mut buf: BufMut = pool.alloc(HEAD_MAX).ok()?;
    let mut len = 0;
    while len < HEAD_MAX {
        let (read, back) = stream.read.read(buf, len).await;
        buf = back;
        match read {
            Ok(count) if count > 0 => len += count,
            _ => return None,
        }
        if buf[..len].windows(4).any(|window| window == b"\r\n\r\n") {
            return Some(buf[..len].to_vec());
        }
    }
    Some(buf[..len].to_vec())
}

fn parts(pool: &BufPool, bytes: &[u8]) -> Result<Vec<Buf>, OutOfMemory> {
    bytes.chunks(PART).map(|part| pool.copy_of(part)).collect()
}

/// The whole answer to a request's head.
fn respond(head: &[u8], pages: &dyn Fn(&str) -> Option<Page>) -> String {
    let line = head.split(|&byte| byte == b'\r' || byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, path) = (words.next(), words.next());
    let version = words.next().unwrap_or_default();
    if !head.ends_with(b"\r\n\r\n") || path.is_none() || !version.starts_with("HTTP/1.") {
        return page("400 Bad Request", "text/plain", "this is no HTTP/1.1 request\n");
    }
    match (method, path.and_then(pages)) {
        (Some("GET"), Some(found)) => page("200 OK", found.kind, &found.text),
        (Some("GET"), None) => page(
            "404 Not Found",
            "text/plain",
            "there are /metrics and /health, and /seen of processes with a client\n",
        ),
        _ => page("405 Method Not Allowed", "text/plain", "only GET is answered\n"),
    }
}

fn page(status: &str, kind: &str, text: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{text}",
        text.len()
    )
}

/// Fuzz target: any head gets a whole answer.
pub fn fuzz_http(bytes: &[u8]) {
    let pages = |path: &str| {
        (path == "/metrics").then(|| Page { kind: "text/plain", text: "a 1\n".to_owned() })
    };
    let answer = respond(bytes, &pages);
    assert!(answer.starts_with("HTTP/1.1 ") && answer.contains("\r\n\r\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered() {
        let pages = |path: &str| {
            (path == "/metrics").then(|| Page { kind: "text/plain", text: "a 1\n".to_owned() })
        };
        let check = |head: &str, want: &str| {
            let answer = respond(head.as_bytes(), &pages);
            assert!(answer.starts_with(&format!("HTTP/1.1 {want}")), "{head}: {answer}");
        };
        check("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "200 OK");
        check("GET /metrics HTTP/1.0\r\n\r\n", "200 OK");
        check("GET / HTTP/1.1\r\n\r\n", "404");
        check("POST /metrics HTTP/1.1\r\n\r\n", "405");
        check("GET /metrics\r\n\r\n", "400");
        check("CRTN\0\0\r\n\r\n", "400");
        check("", "400");
        let answer = respond(b"GET /metrics HTTP/1.1\r\n\r\n", &pages);
        assert!(answer.contains("Content-Length: 4\r\n") && answer.ends_with("\r\n\r\na 1\n"));
    }
}
