//! Files, one stream each, with certificates from PEM files:
//!
//!     guide-files serve FOLDER CHAIN KEY ADDRESS
//!     guide-files get ADDRESS SERVER_NAME ROOTS FILE

use std::error::Error;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use squall::tls::{self, Identity, roots_from_pem};
use squall::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, ServerConfig};
use tokio::io::{AsyncWriteExt, copy, stdout};

const ALPN: &[u8] = b"files";
/// The code of a stream that is reset because there is no such file.
const NOT_FOUND: u64 = 404;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", folder, chain, key, address] => {
            let server = listen(address.parse()?, chain.as_ref(), key.as_ref())?;
            serve(server, folder.into()).await;
        }
        ["get", address, name, roots, file] => {
            let contents = get(address.parse()?, name, roots.as_ref(), file).await?;
            stdout().write_all(&contents).await?;
        }
        _ => return Err("the first argument must be `serve` or `get`".into()),
    }
    Ok(())
}

fn listen(address: SocketAddr, chain: &Path, key: &Path) -> Result<Endpoint> {
    let identity = Identity::from_pem(chain, key)?;
    let config = ServerConfig::new(tls::server(identity, &[ALPN])?);
    Ok(Endpoint::server(address, config)?)
}

async fn serve(server: Endpoint, folder: PathBuf) {
    server
        .serve(move |connection| answer(connection, folder.clone()))
        .await;
}

async fn answer(connection: Connection, folder: PathBuf) {
    while let Ok((send, recv)) = connection.accept_bi().await {
        let folder = folder.clone();
        connection.spawn(async move {
            if let Err(error) = send_file(send, recv, &folder).await {
                eprintln!("{error}");
            }
        });
    }
}

async fn send_file(mut send: SendStream, mut recv: RecvStream, folder: &Path) -> Result<()> {
    // If this function returns early, the dropped stream is reset with this code.
    send.set_drop_code(NOT_FOUND);
    let name = String::from_utf8(recv.read_to_end(1000).await?)?;
    if name.contains(['/', '\\']) || name.starts_with('.') {
        return Err(format!("{name:?} is not a file name").into());
    }
    let mut file = tokio::fs::File::open(folder.join(name)).await?;
    copy(&mut file, &mut send).await?;
    send.finish()?;
    Ok(())
}

async fn get(address: SocketAddr, server: &str, roots: &Path, file: &str) -> Result<Vec<u8>> {
    let config = ClientConfig::new(tls::client(roots_from_pem(roots)?, &[ALPN])?);
    let client = Endpoint::client(([0, 0, 0, 0], 0).into())?;
    let connection = client.connect_with(config, address, server)?.await?;
    let (mut send, mut recv) = connection.open_bi().await?;
    send.write_all(file.as_bytes()).await?;
    send.finish()?;
    let contents = recv.read_to_end(1 << 30).await?;
    connection.close(0, b"done");
    client.wait_idle().await;
    Ok(contents)
}

#[cfg(test)]
#[path = "../../tests/common/authority.rs"]
mod authority;

#[cfg(test)]
mod tests {
    use super::authority::Folder;

    #[tokio::test]
    async fn only_files_in_the_folder_are_served() {
        let folder = Folder::new("guide-files", &["server"]);
        let path = &folder.path;
        let contents: Vec<u8> = (0..1_000_000_u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(path.join("some.bin"), &contents).unwrap();
        let any_port = ([127, 0, 0, 1], 0).into();
        let server = super::listen(any_port, &path.join("server.pem"), &path.join("server.key"));
        let server = server.unwrap();
        let address = server.local_addr().unwrap();
        tokio::spawn(super::serve(server.clone(), path.clone()));
        let roots = path.join("ca.pem");
        let file = super::get(address, "localhost", &roots, "some.bin").await;
        assert!(file.unwrap() == contents);
        for name in ["other.bin", "../some.bin", ".", ""] {
            let error = super::get(address, "localhost", &roots, name)
                .await
                .unwrap_err();
            assert!(error.to_string().contains("code 404"), "{name}: {error}");
        }
        server.close(0, b"");
    }
}
