//! Pages that processes serve over HTTP.

use std::net::SocketAddr;

use runtime::Env;

/// Bytes of a page that are read at a time.
const PART: usize = 16 << 10;
/// Bytes of a page at most.
const PAGE_MAX: usize = 1 << 20;

/// The answer to a request for the page `path`, with its head. The caller bounds the time.
pub async fn fetch(env: &Env, addr: SocketAddr, path: &str) -> Result<String, String> {
    let mut stream = env.connect(addr).await.map_err(|error| error.to_string())?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
    let request = env.pool().copy_of(request.as_bytes()).map_err(|error| error.to_string())?;
    stream.write.write_all(vec![request]).await.map_err(|error| error.to_string())?;
    let mut page = Vec::new();
    loop {
        let buf = env.pool().alloc(PART).map_err(|error| error.to_string())?;
        let (read, buf) = stream.read.read(buf, 0).await;
        let read = read.map_err(|error| error.to_string())?;
        if read == 0 {
            return String::from_utf8(page).map_err(|_| "its page is no text".to_owned());
        }
        page.extend_from_slice(&buf[..read]);
        if page.len() > PAGE_MAX {
            return Err("its page is too long".to_owned());
        }
    }
}

/// The text of a page that is there.
pub async fn text(env: &Env, addr: SocketAddr, path: &str) -> Result<String, String> {
    let page = fetch(env, addr, path).await?;
    let (head, body) = page.split_once("\r\n\r\n").ok_or("it does not speak HTTP")?;
    match head.starts_with("HTTP/1.1 200") {
        true => Ok(body.to_owned()),
        false => Err(format!("it has no page {path}")),
    }
}
