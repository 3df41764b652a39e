//! The traits of h3-datagram (RFC 9297).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h3_datagram::ConnectionErrorIncoming;
use h3_datagram::datagram::EncodedDatagram;
use h3_datagram::quic_traits::{
    DatagramConnectionExt, RecvDatagram, SendDatagram, SendDatagramErrorIncoming,
};
use squall::{DatagramError, ReadDatagram};

use crate::connection::Connection;
use crate::error;

/// Sends datagrams on a connection.
#[derive(Debug)]
pub struct SendDatagramHandler(squall::Connection);

impl<B: Buf> SendDatagram<B> for SendDatagramHandler {
    fn send_datagram<T: Into<EncodedDatagram<B>>>(
        &mut self,
        data: T,
    ) -> Result<(), SendDatagramErrorIncoming> {
        let mut data = data.into();
        let data = data.copy_to_bytes(data.remaining());
        self.0.send_datagram(data).map_err(|error| match error {
            DatagramError::TooLarge => SendDatagramErrorIncoming::TooLarge,
            DatagramError::Unsupported => SendDatagramErrorIncoming::NotAvailable,
            other => SendDatagramErrorIncoming::ConnectionError(match self.0.close_reason() {
                Some(reason) => error::of_connection(reason),
                None => ConnectionErrorIncoming::Undefined(Arc::new(other)),
            }),
        })
    }
}

/// Receives the datagrams of a connection.
#[derive(Debug)]
pub struct RecvDatagramHandler {
    connection: squall::Connection,
    reading: Option<ReadDatagram>,
}

impl RecvDatagram for RecvDatagramHandler {
    type Buffer = Bytes;

    fn poll_incoming_datagram(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Bytes, ConnectionErrorIncoming>> {
        let reading = (self.reading).get_or_insert_with(|| self.connection.read_datagram());
        let data = ready!(Pin::new(reading).poll(cx));
        self.reading = None;
        Poll::Ready(data.map_err(error::of_connection))
    }
}

impl<B: Buf> DatagramConnectionExt<B> for Connection {
    type SendDatagramHandler = SendDatagramHandler;
    type RecvDatagramHandler = RecvDatagramHandler;

    fn send_datagram_handler(&self) -> SendDatagramHandler {
        SendDatagramHandler(self.squall().clone())
    }

    fn recv_datagram_handler(&self) -> RecvDatagramHandler {
        RecvDatagramHandler {
            connection: self.squall().clone(),
            reading: None,
        }
    }
}
