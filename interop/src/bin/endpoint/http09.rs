//! HTTP/0.9 over QUIC: `GET /path` on a stream, the file as the answer, and nothing else.

use std::path::Path;

use squall::{Connection, RecvStream, SendStream};
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::Outcome;

/// The application protocol.
pub(crate) const ALPN: &[u8] = b"hq-interop";

/// The longest request: the runner's names have up to 250 characters.
const MAX_REQUEST: usize = 4096;
/// How much of a file is read at a time.
const PIECE: usize = 256 * 1024;

/// Answers all requests of a connection.
pub(crate) async fn serve(connection: Connection, www: &Path) {
    while let Ok((send, recv)) = connection.accept_bi().await {
        let www = www.to_owned();
        tokio::spawn(async move {
            // The stream is reset if this fails, so that the client never takes a part for the
            // file.
            if let Err(error) = answer(send, recv, &www).await {
                eprintln!("squall: {error}");
            }
        });
    }
}

async fn answer(mut send: SendStream, mut recv: RecvStream, www: &Path) -> Outcome<()> {
    let request = request(&mut recv).await?;
    let name = std::str::from_utf8(&request)?
        .strip_prefix("GET /")
        .ok_or("not a GET request")?
        .trim_end();
    let mut file = File::open(www.join(plain(name)?)).await?;
    loop {
        let mut piece = Vec::with_capacity(PIECE);
        if file.read_buf(&mut piece).await? == 0 {
            break;
        }
        send.write_chunk(piece.into()).await?;
    }
    send.finish()?;
    Ok(())
}

/// Reads a request line. Some clients leave their end of the stream open.
async fn request(recv: &mut RecvStream) -> Outcome<Vec<u8>> {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        let Some(chunk) = recv.read_chunk(MAX_REQUEST).await? else {
            break;
        };
        line.extend_from_slice(&chunk);
        if line.len() > MAX_REQUEST {
            return Err("the request is too long".into());
        }
    }
    Ok(line)
}

/// Fetches a file. Returns its length.
pub(crate) async fn get(connection: &Connection, path: &str, to: &Path) -> Outcome<u64> {
    let (mut send, mut recv) = connection.open_bi().await?;
    send.write_all(format!("GET {path}\r\n").as_bytes()).await?;
    send.finish()?;
    let mut file = File::create(to).await?;
    let mut length = 0;
    while let Some(chunk) = recv.read_chunk(usize::MAX).await? {
        length += chunk.len() as u64;
        file.write_all(&chunk).await?;
    }
    file.flush().await?;
    Ok(length)
}

/// A name without a folder: the runner's files are all in one.
pub(crate) fn plain(name: &str) -> Outcome<&str> {
    let is_plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
    is_plain
        .then_some(name)
        .ok_or_else(|| format!("{name:?} is not the name of a file").into())
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn paths_cannot_leave_the_folder() {
        assert!(plain("a-file.bin").is_ok());
        for name in ["", ".", "..", "../key", "a/../../key", "/etc/passwd", "a\0"] {
            assert!(plain(name).is_err(), "{name:?}");
        }
    }
}
