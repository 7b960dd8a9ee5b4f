//! A connection to a gateway: HTTP/1.1, kept alive, one request at a time.

use std::net::SocketAddr;

use runtime::{Buf, BufMut, Env, ReadHalf, WriteHalf};

use super::super::Error;

/// Bytes that one system call takes in at most, and of an answer's head.
const RECEIVE_BYTES: usize = 256 << 10;

fn say(error: impl std::fmt::Display) -> Error {
    Error::Failed(format!("S3: {error}"))
}

/// A connection. After a failed request it is of no more use.
pub(super) struct Connection {
    env: Env,
    read: ReadHalf,
    write: WriteHalf,
    buf: Option<BufMut>,
}

impl Connection {
    pub(super) async fn open(env: &Env, addr: SocketAddr) -> Result<Connection, Error> {
        let stream = env.connect(addr).await.map_err(|error| say(format!("{addr}: {error}")))?;
        let buf = Some(env.pool().alloc(RECEIVE_BYTES).map_err(say)?);
        Ok(Connection { env: env.clone(), read: stream.read, write: stream.write, buf })
    }

    /// Sends a request and hands the answer's body to `sink`, piece by piece. Returns the status.
    pub(super) async fn ask(
        &mut self,
        head: &[u8],
        body: Vec<Buf>,
        mut sink: impl FnMut(&[u8]),
    ) -> Result<u16, Error> {
        let mut bufs = vec![self.env.pool().copy_of(head).map_err(say)?];
        bufs.extend(body);
        self.write.write_all(bufs).await.map_err(say)?;
        let mut buf = self.buf.take().ok_or_else(|| say("the connection has failed"))?;
        let mut filled = 0;
        let (answer, body_at) = loop {
            buf = self.receive(buf, &mut filled).await?;
            let end = buf[..filled].windows(4).position(|four| four == b"\r\n\r\n");
            match end {
                Some(end) => break (Answer::parse(&buf[..end])?, end + 4),
                None if filled == buf.len() => return Err(say("an answer's head is too long")),
                None => {}
            }
        };
        let mut left = answer.len;
        let mut start = body_at;
        loop {
            let piece = &buf[start..filled];
            left = left.checked_sub(piece.len()).ok_or_else(|| say("more than the answer"))?;
            sink(piece);
            if left == 0 {
                break;
            }
            (start, filled) = (0, 0);
            buf = self.receive(buf, &mut filled).await?;
        }
        self.buf = Some(buf);
        Ok(answer.status)
    }

    async fn receive(&mut self, buf: BufMut, filled: &mut usize) -> Result<BufMut, Error> {
        let (count, buf) = self.read.read(buf, *filled).await;
        match count.map_err(say)? {
            0 => Err(say("the gateway closed the connection")),
            count => {
                *filled += count;
                Ok(buf)
            }
        }
    }
}

/// What an answer's head says.
#[derive(PartialEq, Eq, Debug)]
struct Answer {
    status: u16,
    /// Bytes of the body.
    len: usize,
}

impl Answer {
    fn parse(head: &[u8]) -> Result<Answer, Error> {
        let text = std::str::from_utf8(head).map_err(say)?;
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let status = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.ok_or_else(|| say(format!("no answer of HTTP/1.1: {first}")))?;
        let len = lines.find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
        });
        match len {
            Some(len) => Ok(Answer { status, len }),
            None if status == 204 => Ok(Answer { status, len: 0 }),
            None => Err(say(format!("an answer without a length: {text}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_has_status_and_length() {
        let parse = |text: &str| Answer::parse(text.as_bytes());
        let found = parse("HTTP/1.1 200 OK\r\nserver: x\r\nContent-Length: 12");
        assert_eq!(found, Ok(Answer { status: 200, len: 12 }));
        assert_eq!(parse("HTTP/1.1 204 No Content"), Ok(Answer { status: 204, len: 0 }));
        for bad in ["HTTP/1.1 200 OK", "HTTP/1.0 200 OK\r\ncontent-length: 1", "HTTP/1.1 2", ""] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
