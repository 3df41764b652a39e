//! What an unmodified quinn costs with the packet protection of ring, aws-lc and squall: CPU time
//! of both ends of a bulk transfer over loopback, on one thread.
//!
//! ```text
//! cargo run --release -p squall-rustls --example bulk -- [rounds] [megabytes per round]
//! ```
//! Each round runs every provider once, so that all of them see the machine in the same state; the
//! medians of the rounds are printed. CPU time comes from Linux's `/proc/self/schedstat`.

use std::error::Error;
use std::net::Ipv4Addr;
use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Endpoint, ServerConfig};
use rustls::CipherSuite;
use rustls::crypto::{CryptoProvider, aws_lc_rs, ring};
use rustls::pki_types::PrivateKeyDer;
use rustls::version::TLS13;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SUITES: [CipherSuite; 3] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS13_AES_256_GCM_SHA384,
    CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
];

/// Providers by name, set to prefer a suite.
fn contenders(suite: CipherSuite) -> [(&'static str, Arc<CryptoProvider>); 3] {
    [
        ("ring", ring::default_provider()),
        ("aws-lc", aws_lc_rs::default_provider()),
        (
            "squall",
            squall_rustls::wrap_all(aws_lc_rs::default_provider()),
        ),
    ]
    .map(|(name, mut provider)| {
        provider.cipher_suites.sort_by_key(|it| it.suite() != suite);
        (name, Arc::new(provider))
    })
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().map_or(Ok(default), |text| text.parse());
    let (rounds, megabytes) = (number(7)?, number(256)?);
    println!("CPU time of both ends for {megabytes} MB, medians of {rounds} rounds:");
    for suite in SUITES {
        let contenders = contenders(suite);
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..rounds.max(1) {
            for ((_, provider), times) in contenders.iter().zip(&mut times) {
                times.push(transfer(provider, megabytes)?);
            }
        }
        let medians = times.map(|mut times| {
            times.sort_unstable();
            times[times.len() / 2]
        });
        print!("{suite:?}:");
        for ((name, _), median) in contenders.iter().zip(medians) {
            let share = 100.0 * median as f64 / medians[1].max(1) as f64;
            print!("  {name} {} ms ({share:.1} % of aws-lc)", median / 1000);
        }
        println!();
    }
    Ok(())
}

/// Moves this many megabytes; returns the CPU time in microseconds.
fn transfer(provider: &Arc<CryptoProvider>, megabytes: usize) -> Result<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let before = cpu_time_us()?;
    runtime
        .block_on(async {
            let (server_config, client_config) = configs(provider)?;
            let any = (Ipv4Addr::LOCALHOST, 0).into();
            let listening = Endpoint::server(server_config, any)?;
            let address = listening.local_addr()?;
            let server = tokio::spawn(sink(listening));
            let mut endpoint = Endpoint::client(any)?;
            endpoint.set_default_client_config(client_config);
            let connection = endpoint.connect(address, "localhost")?.await?;
            let mut stream = connection.open_uni().await?;
            let chunk = vec![7; 1_000_000];
            for _ in 0..megabytes {
                stream.write_all(&chunk).await?;
            }
            stream.finish()?;
            stream.stopped().await?;
            connection.close(0_u32.into(), b"");
            let received = server.await?;
            if received == megabytes * chunk.len() {
                Ok(())
            } else {
                Err(format!("only {received} bytes arrived").into())
            }
        })
        .and_then(|()| Ok(cpu_time_us()? - before))
}

/// Counts what arrives on one stream.
async fn sink(listening: Endpoint) -> usize {
    let count = async {
        let connection = listening.accept().await?.await.ok()?;
        let mut stream = connection.accept_uni().await.ok()?;
        let mut count = 0;
        while let Ok(Some(chunk)) = stream.read_chunk(usize::MAX, true).await {
            count += chunk.bytes.len();
        }
        Some(count)
    };
    count.await.unwrap_or(0)
}

fn configs(provider: &Arc<CryptoProvider>) -> Result<(ServerConfig, ClientConfig)> {
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let key = PrivateKeyDer::Pkcs8(certificate.signing_key.serialize_der().into());
    let certificate = certificate.cert.der().clone();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone())?;
    let server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    let client = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok((
        ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(server)?)),
        ClientConfig::new(Arc::new(QuicClientConfig::try_from(client)?)),
    ))
}

/// CPU time of the main thread in microseconds: both ends run on it.
fn cpu_time_us() -> Result<u64> {
    let stat = std::fs::read_to_string("/proc/self/schedstat")?;
    let ns: u64 = stat.split(' ').next().ok_or("no CPU time")?.parse()?;
    Ok(ns / 1000)
}
