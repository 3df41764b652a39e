//! The table of squall's documentation for users who come from quinn: every row names both sides in
//! code here, and everything in quinn's own documentation has a row or is the same.

use std::any::type_name;
use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names items in code: they exist, or this does not compile.
macro_rules! named {
    ($($item:expr),* $(,)?) => {
        $( let _ = &$item; )*
    };
}

/// Rows of the table by their first cell, and the items that they name on both sides.
macro_rules! rows {
    ($($row:literal { $($quinn:expr),* $(,)? } { $($here:expr),* $(,)? })*) => {
        fn rows() -> Vec<&'static str> {
            $( named!($($quinn,)* $($here,)*); )*
            vec![$($row),*]
        }
    };
}

/// Items with the same name on both sides.
macro_rules! same {
    ($($owner:ident { $($name:ident),* $(,)? })*) => {
        fn same() -> Vec<String> {
            $( named!($(quinn::$owner::$name, squall::$owner::$name),*); )*
            [$( $( concat!(stringify!($owner), "::", stringify!($name)) ),* ),*]
                .map(str::to_owned)
                .into()
        }
    };
}

same! {
    Endpoint {
        client, stats, accept, connect, connect_with, set_server_config, local_addr, close,
        wait_idle,
    }
    Connecting { remote_address, local_ip }
    Incoming {
        refuse, ignore, local_ip, remote_address, remote_address_validated, may_retry
    }
    Connection {
        open_uni, open_bi, accept_uni, accept_bi, read_datagram, closed, close_reason, close,
        send_datagram, send_datagram_wait, max_datagram_size, datagram_send_buffer_space, side,
        remote_address, local_ip, rtt, stats, stable_id, force_key_update, export_keying_material,
        set_max_concurrent_uni_streams, set_send_window,
    }
    SendStream {
        write, write_all, write_chunk, write_all_chunks, finish, reset, stopped, id, poll_write,
    }
    RecvStream {
        read, read_exact, poll_read, read_chunks, read_to_end, stop, id, received_reset,
    }
    TransportConfig {
        max_concurrent_bidi_streams, max_concurrent_uni_streams, stream_receive_window,
        receive_window, send_window, packet_threshold, time_threshold, initial_rtt,
        persistent_congestion_threshold, crypto_buffer_size, pad_to_mtu,
    }
}

rows! {
    "`VarInt`, `IdleTimeout`"
        { quinn::VarInt::from_u32, type_name::<quinn::IdleTimeout> }
        { |c: &squall::Connection| c.close(u64::MAX, b"") }
    "`ConnectionError`" { type_name::<quinn::ConnectionError> } { type_name::<squall::CloseReason> }
    "`ClosedStream`, `StoppedError`, `ResetError`"
        {
            type_name::<quinn::ClosedStream>,
            type_name::<quinn::StoppedError>,
            type_name::<quinn::ResetError>,
        }
        {
            |s: &mut squall::SendStream| -> Result<(), squall::WriteError> { s.finish() },
            |s: &mut squall::RecvStream| -> Result<(), squall::ReadError> { s.stop(0) },
        }
    "`SendDatagramError`"
        { type_name::<quinn::SendDatagramError> } { type_name::<squall::DatagramError> }
    "`ConnectionStats`" { type_name::<quinn::ConnectionStats> } { type_name::<squall::Stats> }
    "`ZeroRttAccepted`"
        { type_name::<quinn::ZeroRttAccepted> } { type_name::<squall::EarlyDataAccepted> }
    "`Runtime`" { type_name::<dyn quinn::Runtime> } { squall::Builder::on_runtime }
    "`AsyncUdpSocket`" { type_name::<dyn quinn::AsyncUdpSocket> } { type_name::<dyn squall::DatagramSocket> }
    "`Endpoint::server(config, addr)`"
        { |c, a: SocketAddr| quinn::Endpoint::server(c, a) }
        { |c, a: SocketAddr| squall::Endpoint::server(a, c), squall::Builder::server }
    "`Endpoint::new`"
        { quinn::Endpoint::new } { squall::Builder::socket, squall::Builder::on_runtime }
    "`Endpoint::new_with_abstract_socket`"
        { quinn::Endpoint::new_with_abstract_socket } { squall::Builder::datagram_socket }
    "`Endpoint::rebind_abstract`"
        { quinn::Endpoint::rebind_abstract } { squall::Endpoint::rebind_datagram_socket }
    "`Endpoint::set_default_client_config`"
        { quinn::Endpoint::set_default_client_config }
        { squall::Builder::client, squall::Endpoint::connect_with }
    "`Endpoint::rebind(socket)`"
        { |e: &quinn::Endpoint, s: UdpSocket| e.rebind(s) }
        {
            |e: &squall::Endpoint, s: UdpSocket| e.rebind_sockets([s]),
            |e: &squall::Endpoint, a: SocketAddr| e.rebind(a),
        }
    "`Endpoint::open_connections`"
        { quinn::Endpoint::open_connections }
        { |e: &squall::Endpoint| -> u64 { e.stats().connections } }
    "`Connecting::into_0rtt`"
        { |c: quinn::Connecting| c.into_0rtt().is_ok() }
        { async |c: squall::Connecting| c.into_0rtt().await.is_ok() }
    "`Connecting::handshake_data`"
        { quinn::Connecting::handshake_data }
        { squall::Connecting::handshake_data, type_name::<squall::HandshakeData> }
    "`Incoming::accept` returns a `Result`"
        { |i: quinn::Incoming| i.accept().is_ok() }
        { |i: squall::Incoming| -> squall::Connecting { i.accept() } }
    "`Incoming::retry` returns a `Result`"
        { |i: quinn::Incoming| i.retry().is_ok() }
        { |i: squall::Incoming| if i.may_retry() { i.retry() } }
    "`Incoming::orig_dst_cid`"
        { quinn::Incoming::orig_dst_cid } { squall::Incoming::original_destination_id }
    "`Connection::handshake_data`"
        { quinn::Connection::handshake_data }
        { squall::Connection::alpn, squall::Connection::server_name }
    "`Connection::peer_identity`"
        { quinn::Connection::peer_identity } { squall::Connection::peer_certificates }
    "`Connection::min_rtt`, `congestion_state`"
        { quinn::Connection::min_rtt, quinn::Connection::congestion_state }
        { |c: &squall::Connection| (c.stats().min_rtt, c.stats().congestion_window) }
    "`Connection::set_max_concurrent_bi_streams`"
        { quinn::Connection::set_max_concurrent_bi_streams }
        { squall::Connection::set_max_concurrent_bidi_streams }
    "`Connection::set_receive_window`"
        { quinn::Connection::set_receive_window } { squall::Connection::set_receive_window }
    "dropping a `SendStream` finishes it" { drop::<quinn::SendStream> } { squall::SendStream::finish }
    "`SendStream::write_chunks` returns a `Written`"
        { async |s: &mut quinn::SendStream| s.write_chunks(&mut []).await.map(|w: quinn::Written| w.bytes) }
        { async |s: &mut squall::SendStream| s.write_chunks(&mut []).await.map(|w: usize| w) }
    "`SendStream::priority`, `set_priority`"
        { |s: &quinn::SendStream| s.priority().map(|p: i32| s.set_priority(p)) }
        { |s: &squall::SendStream| s.priority().map(|p: squall::Priority| s.set_priority(p)) }
    "`RecvStream::read_chunk(max, true)`"
        { async |s: &mut quinn::RecvStream| s.read_chunk(1, true).await.map(|c| c.map(|c| c.bytes)) }
        { async |s: &mut squall::RecvStream| s.read_chunk(1).await.map(|c: Option<squall::Bytes>| c) }
    "`RecvStream::read_chunk(max, false)`"
        { async |s: &mut quinn::RecvStream| s.read_chunk(1, false).await.map(|c| c.map(|c| c.offset)) }
        { squall::RecvStream::read_chunk_unordered }
    "`RecvStream::poll_read_buf`"
        { quinn::RecvStream::poll_read_buf }
        { squall::RecvStream::poll_read, squall::RecvStream::poll_read_chunk }
    "`RecvStream::is_0rtt`" { quinn::RecvStream::is_0rtt } { squall::RecvStream::is_early }
    "`TransportConfig::max_idle_timeout(None)`"
        { |t: &mut quinn::TransportConfig| { t.max_idle_timeout(None); } }
        { |t: squall::TransportConfig| t.max_idle_timeout(std::time::Duration::ZERO) }
    "`TransportConfig::keep_alive_interval`"
        { quinn::TransportConfig::keep_alive_interval } { squall::TransportConfig::keep_alive }
    "`TransportConfig::initial_mtu`"
        { quinn::TransportConfig::initial_mtu } { squall::TransportConfig::initial_udp_payload }
    "`TransportConfig::min_mtu`"
        { quinn::TransportConfig::min_mtu } { squall::TransportConfig::min_udp_payload }
    "`TransportConfig::mtu_discovery_config`"
        { quinn::TransportConfig::mtu_discovery_config, type_name::<quinn::MtuDiscoveryConfig> }
        {
            squall::TransportConfig::mtu_discovery, squall::TransportConfig::max_udp_payload,
            squall::TransportConfig::mtu_discovery_interval,
        }
    "`TransportConfig::send_fairness`"
        { quinn::TransportConfig::send_fairness }
        { squall::Priority { level: 0, incremental: true } }
    "`TransportConfig::ack_frequency_config`"
        { quinn::TransportConfig::ack_frequency_config } { squall::TransportConfig::ack_frequency }
    "`TransportConfig::allow_spin`"
        { quinn::TransportConfig::allow_spin } { squall::TransportConfig::spin_bit }
    "`TransportConfig::datagram_receive_buffer_size(None)`"
        { |t: &mut quinn::TransportConfig| { t.datagram_receive_buffer_size(None); } }
        { |t: squall::TransportConfig| t.datagram_receive_buffer(0) }
    "`TransportConfig::datagram_send_buffer_size`"
        { quinn::TransportConfig::datagram_send_buffer_size }
        { squall::TransportConfig::datagram_send_buffer }
    "`TransportConfig::congestion_controller_factory`"
        { quinn::TransportConfig::congestion_controller_factory }
        { squall::TransportConfig::congestion, squall::TransportConfig::congestion_controller }
    "`TransportConfig::enable_segmentation_offload`"
        { quinn::TransportConfig::enable_segmentation_offload } { squall::Builder::gso }
    // A feature of quinn.
    "`TransportConfig::qlog_stream`" {} { squall::Builder::qlog_dir }
    "`ServerConfig::new`, `with_crypto`"
        { quinn::ServerConfig::new, quinn::ServerConfig::with_crypto }
        { |tls: rustls::ServerConfig| squall::ServerConfig::new(tls) }
    "`ServerConfig::with_single_cert`"
        { quinn::ServerConfig::with_single_cert } { squall::tls::server, squall::server_tls }
    "`ServerConfig::transport_config`"
        { quinn::ServerConfig::transport_config }
        { |c: squall::ServerConfig, t: squall::TransportConfig| c.transport(t) }
    "`ServerConfig::migration`"
        { quinn::ServerConfig::migration } { squall::TransportConfig::allow_migration }
    "`ServerConfig::preferred_address_v4`"
        { quinn::ServerConfig::preferred_address_v4 } { squall::TransportConfig::preferred_ipv4 }
    "`ServerConfig::preferred_address_v6`"
        { quinn::ServerConfig::preferred_address_v6 } { squall::TransportConfig::preferred_ipv6 }
    "`ServerConfig::max_incoming`"
        { quinn::ServerConfig::max_incoming }
        { squall::Builder::max_incoming, squall::Builder::max_handshakes }
    "`ServerConfig::incoming_buffer_size`, `incoming_buffer_size_total`"
        {
            quinn::ServerConfig::incoming_buffer_size,
            quinn::ServerConfig::incoming_buffer_size_total,
        }
        { squall::Builder::incoming_buffer_size, squall::Builder::incoming_buffer_size_total }
    "`ServerConfig::token_key`"
        { quinn::ServerConfig::token_key } { squall::Builder::token_key }
    "`ServerConfig::validation_token_config`"
        { quinn::ServerConfig::validation_token_config }
        { squall::TransportConfig::new_tokens, squall::Builder::new_token_lifetime }
    "`ServerConfig::retry_token_lifetime`"
        { quinn::ServerConfig::retry_token_lifetime } { squall::Builder::retry_token_lifetime }
    "`ServerConfig::time_source`" { quinn::ServerConfig::time_source } {}
    "`ClientConfig::new`"
        { quinn::ClientConfig::new }
        { |tls: rustls::ClientConfig| squall::ClientConfig::new(tls) }
    "`ClientConfig::with_root_certificates`"
        { |roots| quinn::ClientConfig::with_root_certificates(roots) }
        {
            |roots: rustls::RootCertStore| squall::client_tls(roots, &[]),
            |roots: rustls::RootCertStore| squall::tls::client(roots, &[]),
        }
    // Features of both.
    "`ClientConfig::with_platform_verifier`" {} {}
    "`ClientConfig::try_with_platform_verifier`" {} {}
    "`ClientConfig::transport_config`"
        { quinn::ClientConfig::transport_config }
        { |c: squall::ClientConfig, t: squall::TransportConfig| c.transport(t) }
    "`ClientConfig::version`"
        { quinn::ClientConfig::version } { squall::TransportConfig::versions }
    "`ClientConfig::token_store`"
        { quinn::ClientConfig::token_store }
        { squall::ClientConfig::token_store, type_name::<dyn squall::TokenStore> }
    "`ClientConfig::initial_dst_cid_provider`"
        { quinn::ClientConfig::initial_dst_cid_provider }
        {
            |c: squall::ClientConfig| {
                c.original_destination_id(|| squall::ConnectionId::new(&[1; 8]).expect("8 bytes"))
            }
        }
    "`EndpointConfig::new`, `reset_key`"
        { quinn::EndpointConfig::new, quinn::EndpointConfig::reset_key }
        { squall::Builder::reset_key }
    "`EndpointConfig::cid_generator`"
        { quinn::EndpointConfig::cid_generator::<fn() -> Box<dyn quinn::ConnectionIdGenerator>> }
        { squall::Builder::connection_ids }
    "`EndpointConfig::supported_versions`"
        { quinn::EndpointConfig::supported_versions } { squall::TransportConfig::versions }
    "`EndpointConfig::max_udp_payload_size`"
        { quinn::EndpointConfig::max_udp_payload_size }
        { squall::TransportConfig::max_received_udp_payload }
    "`EndpointConfig::get_max_udp_payload_size`"
        { quinn::EndpointConfig::get_max_udp_payload_size }
        { |t: squall::TransportConfig| -> u16 { t.max_received_udp_payload } }
    "`EndpointConfig::grease_quic_bit`, `rng_seed`"
        { quinn::EndpointConfig::grease_quic_bit, quinn::EndpointConfig::rng_seed }
        { squall::Builder::grease_quic_bit, squall::Builder::rng_seed }
    "`EndpointConfig::min_reset_interval`"
        { quinn::EndpointConfig::min_reset_interval }
        { squall::Builder::stateless_resets_per_second }
}

/// The first cells of the table in the documentation.
fn table() -> Vec<String> {
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/squall/src/lib.rs");
    let text = std::fs::read_to_string(lib).expect("squall's lib.rs");
    text.lines()
        .skip_while(|line| *line != "//! | quinn | here |")
        .skip(2)
        .map_while(|line| line.strip_prefix("//! | "))
        .map(|row| row.split(" | ").next().unwrap_or(row).to_owned())
        .collect()
}

#[test]
fn every_row_is_named_in_code() {
    let (table, rows) = (table(), rows());
    assert!(table.len() > 50, "{} rows", table.len());
    assert_eq!(table, rows);
}

/// The items that a first cell names: an owner is given once per cell.
fn items_of(cell: &str) -> Vec<String> {
    let mut owner = "";
    cell.split('`')
        .skip(1)
        .step_by(2)
        .map(|item| {
            let item = item.split('(').next().unwrap_or(item);
            match item.split_once("::") {
                Some((first, name)) => {
                    owner = first;
                    format!("{first}::{name}")
                }
                None => format!("{owner}::{item}"),
            }
        })
        .collect()
}

/// The folder of a crate, in the lock file's version.
fn sources(metadata: &str, name: &str) -> PathBuf {
    let start = format!("/{name}-0.");
    let manifest = metadata
        .split("\"manifest_path\":\"")
        .filter_map(|rest| rest.split('"').next())
        .find(|path| path.contains(&start));
    let manifest = Path::new(manifest.expect("a dependency of these tests"));
    manifest.parent().expect("a folder").join("src")
}

/// Public methods of types in a file, as `Type::name`.
fn methods(file: &Path, types: &[&str]) -> Vec<String> {
    let text = std::fs::read_to_string(file).expect("a source file of quinn's");
    let (mut owner, mut found) = (None, Vec::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("impl ") {
            let name = rest.split([' ', '<']).next().unwrap_or_default();
            owner = types.iter().find(|known| **known == name);
        }
        let line = line.strip_prefix("    pub ").unwrap_or_default();
        let signature = line
            .strip_prefix("async ")
            .unwrap_or(line)
            .strip_prefix("fn ");
        if let (Some(owner), Some(signature)) = (owner, signature) {
            let name = signature.split(['(', '<']).next().unwrap_or_default();
            found.push(format!("{owner}::{name}"));
        }
    }
    found
}

#[test]
fn every_documented_item_of_quinn_has_a_row_or_is_the_same() {
    let output = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["metadata", "--format-version", "1", "--offline", "--quiet"])
        // Dependencies of other platforms need not be present.
        .args(["--filter-platform", env!("TARGET")])
        .output()
        .expect("cargo");
    let metadata = String::from_utf8(output.stdout).expect("metadata");
    let (quinn, proto) = (
        sources(&metadata, "quinn"),
        sources(&metadata, "quinn-proto"),
    );
    let mut items = Vec::new();
    for (file, types) in [
        (quinn.join("endpoint.rs"), &["Endpoint"][..]),
        (quinn.join("connection.rs"), &["Connecting", "Connection"]),
        (quinn.join("incoming.rs"), &["Incoming"]),
        (quinn.join("send_stream.rs"), &["SendStream"]),
        (quinn.join("recv_stream.rs"), &["RecvStream"]),
        (proto.join("config/transport.rs"), &["TransportConfig"]),
        (
            proto.join("config/mod.rs"),
            &["EndpointConfig", "ServerConfig", "ClientConfig"],
        ),
    ] {
        items.extend(methods(&file, types));
    }
    assert!(items.len() > 120, "found {} items of quinn's", items.len());
    let mut known: BTreeSet<String> = same().into_iter().collect();
    // It accepts its configuration in several forms, so its type does not follow from its name.
    named!(
        quinn::Incoming::accept_with,
        |i: squall::Incoming, c: squall::ServerConfig| i.accept_with(c)
    );
    known.insert("Incoming::accept_with".to_owned());
    for cell in table() {
        known.extend(items_of(&cell));
    }
    let missing: Vec<_> = items.iter().filter(|item| !known.contains(*item)).collect();
    assert!(missing.is_empty(), "without a row: {missing:?}");
    // And the other way round: everything listed as the same is still in quinn.
    let gone: Vec<_> = same()
        .into_iter()
        .filter(|item| !items.contains(item))
        .collect();
    assert!(gone.is_empty(), "no longer in quinn: {gone:?}");
}
