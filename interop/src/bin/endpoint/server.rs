//! The server: serves a folder until it is stopped.

use std::sync::Arc;

use squall::{Builder, Endpoint, ServerConfig};
use squall_h3::server;
use tokio::signal::unix::{SignalKind, signal};

use crate::Outcome;
use crate::config;
use crate::facts::Facts;
use crate::http3::Files;
use crate::http09;
use crate::settings::{Case, Settings};

/// Serves until SIGTERM or SIGINT.
pub(crate) async fn run(settings: &Settings) -> Outcome<()> {
    let config =
        ServerConfig::new(config::server_tls(settings)?).transport(config::transport(settings));
    let mut builder = Builder::new(settings.listen)
        .server(config)
        .events(Arc::new(Facts));
    if settings.case == Case::Retry {
        builder = builder.retry_from(0);
    }
    let endpoint = builder.bind()?;
    println!("squall: listening on {}", endpoint.local_addr()?);
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    tokio::select! {
        () = serve(&endpoint, settings) => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    endpoint.close(0, b"the server is stopped");
    // Once connections have ended, their qlogs are complete.
    endpoint.wait_idle().await;
    Ok(())
}

async fn serve(endpoint: &Endpoint, settings: &Settings) {
    if settings.case == Case::Http3 {
        let files = Files(settings.www.clone());
        return server::serve(endpoint.clone(), files).await;
    }
    while let Some(incoming) = endpoint.accept().await {
        let www = settings.www.clone();
        tokio::spawn(async move {
            // At once, so that requests in early data are answered before the handshake completes.
            let connection = match incoming.accept().into_0rtt().await {
                Ok((connection, _)) => Ok(connection),
                Err(connecting) => connecting.await,
            };
            match connection {
                Ok(connection) => http09::serve(connection, &www).await,
                Err(error) => eprintln!("squall: {error}"),
            }
        });
    }
}
