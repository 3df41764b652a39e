//! Files over QUIC, one stream each.
//!
//! ```sh
//! # Prints its address, writes FOLDER/server.der.
//! cargo run --release --example files -- serve FOLDER
//! cargo run --release --example files -- get ADDR FOLDER/server.der NAME > copy
//! ```

use std::error::Error;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use squall::rustls::RootCertStore;
use squall::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use squall::{ClientConfig, Connection, Endpoint, ReadError, RecvStream, SendStream, ServerConfig};
use tokio::io::AsyncWriteExt;

const ALPN: &[u8] = b"files";
/// Why a stream was reset: there is no such file.
const NOT_FOUND: u64 = 1;
/// Why a stream was reset: the rest of the file cannot be read.
const BROKEN_OFF: u64 = 2;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("files: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", folder] => serve(Path::new(folder)).await,
        ["get", address, certificate, name] => get(address.parse()?, certificate, name).await,
        _ => Err("usage: files serve FOLDER | files get ADDR CERTIFICATE NAME".into()),
    }
}

async fn serve(folder: &Path) -> Result<()> {
    let identity = rcgen::generate_simple_self_signed(["files".to_owned()])?;
    let certificate = identity.cert.der().clone();
    tokio::fs::write(folder.join("server.der"), &certificate).await?;
    let key = PrivatePkcs8KeyDer::from(identity.signing_key.serialize_der());
    let config = ServerConfig::new(squall::server_tls(vec![certificate], key.into(), &[ALPN])?);
    let endpoint = Endpoint::server((Ipv6Addr::UNSPECIFIED, 0).into(), config)?;
    println!("[::1]:{}", endpoint.local_addr()?.port());
    let folder = Arc::new(folder.to_owned());
    let serving = endpoint.clone();
    let accepting = tokio::spawn(async move {
        serving
            .serve(move |connection| answer(connection, Arc::clone(&folder)))
            .await;
    });
    tokio::signal::ctrl_c().await?;
    // Downloads under way are finished first.
    endpoint.shutdown(0, b"the server ends").await;
    accepting.await?;
    Ok(())
}

async fn answer(connection: Connection, folder: Arc<PathBuf>) {
    while let Ok((send, recv)) = connection.accept_bi().await {
        // Files are read by tokio's own threads: a worker must not wait for a disk.
        let folder = Arc::clone(&folder);
        connection.spawn(async move {
            if let Err(error) = send_file(send, recv, &folder).await {
                eprintln!("{error}");
            }
        });
    }
}

async fn send_file(mut send: SendStream, mut recv: RecvStream, folder: &Path) -> Result<()> {
    let name = PathBuf::from(String::from_utf8(recv.read_to_end(1000).await?)?);
    let inside = (name.components()).all(|part| matches!(part, Component::Normal(_)));
    match tokio::fs::File::open(folder.join(&name)).await {
        Ok(mut file) if inside => {
            if let Err(error) = tokio::io::copy(&mut file, &mut send).await {
                // Dropping it would finish the stream: the client would take a part for the whole
                // file.
                let _ = send.reset(BROKEN_OFF);
                return Err(format!("{}: {error}", name.display()).into());
            }
            send.finish()?;
        }
        _ => send.reset(NOT_FOUND)?,
    }
    Ok(())
}

async fn get(address: SocketAddr, certificate: &str, name: &str) -> Result<()> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(tokio::fs::read(certificate).await?))?;
    let config = ClientConfig::new(squall::client_tls(roots, &[ALPN])?);
    let endpoint = Endpoint::client((Ipv6Addr::UNSPECIFIED, 0).into())?;
    let connection = endpoint.connect_with(config, address, "files")?.await?;
    let (mut send, mut recv) = connection.open_bi().await?;
    send.write_all(name.as_bytes()).await?;
    send.finish()?;
    let mut out = tokio::io::stdout();
    loop {
        match recv.read_chunk(usize::MAX).await {
            Ok(Some(chunk)) => out.write_all(&chunk).await?,
            Ok(None) => break,
            Err(ReadError::Reset(NOT_FOUND)) => return Err(format!("there is no {name}").into()),
            Err(error) => return Err(error.into()),
        }
    }
    out.flush().await?;
    endpoint.shutdown(0, b"done").await;
    Ok(())
}
