//! Blocking calls to an endpoint from this thread: connect, run tasks on its workers, close.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use squall::{
    ClientConfig, CloseReason, Connecting, Connection, Endpoint, TransportConfig, rustls,
};
use squall_yard::error::{Failure, Result, context};
use squall_yard::interrupt;

/// Why there is no connection.
#[derive(Debug)]
pub(crate) struct Unable {
    pub(crate) failure: Failure,
    /// No server answered: another address of the same host may work.
    pub(crate) is_unreachable: bool,
}

impl From<Unable> for Failure {
    fn from(unable: Unable) -> Self {
        unable.failure
    }
}

impl Unable {
    /// A server answered, but it failed for another reason.
    pub(crate) fn reached(failure: Failure) -> Self {
        Self {
            failure,
            is_unreachable: false,
        }
    }
}

/// Starts a connection, with its own configuration if there are several.
///
/// # Errors
/// It could not be started.
pub(crate) fn dial(
    client: &Endpoint,
    address: SocketAddr,
    name: &str,
    mix: &[ClientConfig],
    index: usize,
) -> Result<Connecting> {
    // Only for a mix: `connect_with` makes an additional TLS session to check the configuration.
    let connecting = match mix {
        [] => client.connect(address, name),
        mix => client.connect_with(mix[index % mix.len()].clone(), address, name),
    };
    connecting.map_err(context("cannot connect"))
}

/// A configuration for each connection; empty if all use the endpoint's own.
pub(crate) fn mix(
    clients: &[Arc<rustls::ClientConfig>],
    transport: &Arc<TransportConfig>,
) -> Vec<ClientConfig> {
    let each = clients.iter().filter(|_| clients.len() > 1);
    each.map(|tls| ClientConfig::new(Arc::clone(tls)).transport(Arc::clone(transport)))
        .collect()
}

/// Makes `count` connections from the client's worker. Ctrl-C aborts.
///
/// # Errors
/// There is no connection; the error says what to do.
pub(crate) fn connect(
    client: &Endpoint,
    address: SocketAddr,
    name: &str,
    mix: &[ClientConfig],
    count: usize,
) -> std::result::Result<Vec<Connection>, Unable> {
    let mut connections = Vec::with_capacity(count);
    for index in 0..count {
        let connecting = dial(client, address, name, mix, index).map_err(Unable::reached)?;
        let connected = wait(client, interrupt::unless_due(None, connecting));
        let connected = connected.map_err(Unable::reached)?.ok_or_else(|| {
            let text = format!("interrupted before {address} answered");
            Unable::reached(Failure::new(text))
        })?;
        connections.push(connected.map_err(|error| Unable {
            failure: explain(&error, address),
            is_unreachable: matches!(
                error,
                CloseReason::HandshakeTimeout
                    | CloseReason::IdleTimeout
                    | CloseReason::Unreachable(_)
            ),
        })?);
    }
    Ok(connections)
}

/// Starts tasks, each on its connection's worker, and waits for all of them.
///
/// # Errors
/// The first failure.
pub(crate) fn run_all<'a, F, T>(tasks: impl Iterator<Item = (&'a Connection, F)>) -> Result<Vec<T>>
where
    F: Future<Output = Result<T>> + Send + 'static,
    T: Send + 'static,
{
    let (results, done) = mpsc::channel();
    let mut count = 0;
    for (connection, task) in tasks {
        let results = results.clone();
        count += 1;
        connection.spawn(async move {
            // If another task has failed, the receiver is gone.
            let _ = results.send(task.await);
        });
    }
    drop(results);
    let outcomes: Vec<T> = done.iter().collect::<Result<_>>()?;
    if outcomes.len() < count {
        return Err(Failure::new("the client's worker ended prematurely"));
    }
    Ok(outcomes)
}

/// Runs a future on an endpoint's worker and waits for it on this thread.
///
/// # Errors
/// The worker ended.
pub(crate) fn wait<F>(endpoint: &Endpoint, future: F) -> Result<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let (result, done) = mpsc::sync_channel(1);
    endpoint.spawn(async move {
        // The receiver is waiting below.
        let _ = result.send(future.await);
    });
    done.recv()
        .map_err(|_| Failure::new("the endpoint's worker ended prematurely"))
}

/// Closes an endpoint and waits up to a second until its peers know.
///
/// # Errors
/// The worker ended.
pub(crate) fn close(endpoint: &Endpoint, reason: &'static [u8]) -> Result<()> {
    endpoint.close(0, reason);
    wait_idle(endpoint)
}

/// Waits up to a second until no connection is left: peers then know, and qlogs are complete.
pub(crate) fn wait_idle(endpoint: &Endpoint) -> Result<()> {
    let idle = endpoint.clone();
    wait(endpoint, async move {
        let _ = tokio::time::timeout(Duration::from_secs(1), idle.wait_idle()).await;
    })
}

/// Why there is no connection, and what to do about it.
pub(crate) fn explain(error: &CloseReason, address: SocketAddr) -> Failure {
    /// RFC 9001 §4.8: the crypto error of TLS alert no_application_protocol.
    const NO_APPLICATION_PROTOCOL: u64 = 0x100 + 120;
    /// Likewise for handshake_failure: no suite or group in common.
    const HANDSHAKE_FAILURE: u64 = 0x100 + 40;
    Failure::new(match error {
        CloseReason::HandshakeTimeout | CloseReason::IdleTimeout => format!(
            "no answer from {address}: check that a server is listening there (squall perf server) and that UDP is not blocked"
        ),
        CloseReason::Transport { code, .. } if code.0 == NO_APPLICATION_PROTOCOL => {
            format!(
                "{address} is a QUIC server but does not support the perf protocol: start squall perf server there"
            )
        }
        CloseReason::Transport { code, .. } if code.0 == HANDSHAKE_FAILURE => {
            format!(
                "{address} and this end have no cipher suite in common: omit --suite at one end"
            )
        }
        // `openssl req -x509` makes these by default, and webpki rejects them from a server (RFC
        // 5280 §4.2.1.9).
        CloseReason::Transport {
            reason,
            remote: false,
            ..
        } if reason.contains("CaUsedAsEndEntity") => format!(
            "{address} presents a CA certificate as its own: create one with basicConstraints=critical,CA:FALSE (openssl \
             req -addext), or pass -k to skip verification"
        ),
        CloseReason::Transport {
            code,
            reason,
            remote: false,
        } if (0x100..0x200).contains(&code.0) => format!(
            "{address} is not trusted ({reason}): pass its certificate with --cacert FILE, or -k to skip verification"
        ),
        error => format!("cannot connect to {address}: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_server_and_a_wrong_certificate_are_distinguished() {
        let address = ([127, 0, 0, 1], 4433).into();
        let silent = explain(&CloseReason::HandshakeTimeout, address);
        assert!(silent.to_string().contains("no answer"));
        let untrusted = CloseReason::Transport {
            code: squall::TransportErrorCode::crypto(48),
            reason: "unknown issuer".to_owned(),
            remote: false,
        };
        assert!(
            explain(&untrusted, address)
                .to_string()
                .contains("--cacert")
        );
    }
}
