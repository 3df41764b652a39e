//! Payloads of packets.

use squall_wire::{Ack, Frame, Frames, PacketType, Writer, frame};

/// Reads the input as a packet's payload. Every frame consumes bytes, is written again, and reads
/// as before.
///
/// # Panics
/// A property does not hold.
pub fn frames(payload: &[u8]) {
    let mut reading = Frames::new(payload);
    let mut position = 0;
    let mut buffer = vec![0; payload.len() + 64];
    let mut given = 0;
    while let Some(next) = reading.next() {
        given += 1;
        let Ok(read) = next else {
            assert!(reading.next().is_none(), "there is nothing after an error");
            return;
        };
        assert!(
            reading.position() > position,
            "a frame of no bytes: {read:?}"
        );
        position = reading.position();
        assert!(position <= payload.len());
        if let Frame::Ack(ack) = &read {
            ranges(ack);
        }
        let may_appear = frame::allowed(read.ty(), PacketType::OneRtt);
        assert!(may_appear, "{read:?} may appear in no packet");

        let mut w = Writer::new(&mut buffer);
        write(&mut w, &read);
        assert!(!w.overflow(), "{read:?} grows by being written");
        let len = w.len();
        let mut again = Frames::new(&buffer[..len]);
        match (read, again.next()) {
            // Its ranges are kept as received, in as many bytes as the peer chose.
            (Frame::Ack(read), Some(Ok(Frame::Ack(again)))) => {
                assert_eq!((read.delay, read.ecn), (again.delay, again.ecn));
                assert!(read.ranges().eq(again.ranges()));
            }
            (read, again) => assert_eq!(again, Some(Ok(read)), "written and read again"),
        }
        assert_eq!(again.position(), len);
    }
    assert_eq!(position, payload.len(), "all is read");
    assert!(given > 0, "an empty payload is an error");
}

/// The ranges descend from the largest number, do not touch, and number as many as the frame says.
fn ranges(ack: &Ack<'_>) {
    let mut below = None;
    let mut count = 0;
    for range in ack.ranges() {
        assert!(range.start() <= range.end());
        match below {
            None => assert_eq!(*range.end(), ack.largest),
            // At least one number is missing between two ranges.
            Some(smallest) => assert!(*range.end() + 1 < smallest),
        }
        below = Some(*range.start());
        count += 1;
    }
    assert_eq!(count, ack.range_count + 1);
}

fn write(w: &mut Writer<'_>, read: &Frame<'_>) {
    use frame::write;
    match *read {
        Frame::Padding(len) => write::padding(w, len),
        Frame::Ping => write::ping(w),
        Frame::Ack(ack) => {
            let written = write::ack(w, ack.ranges(), ack.delay, ack.ecn);
            assert_eq!(written as u64, ack.range_count + 1);
        }
        Frame::ResetStream {
            id,
            error_code,
            final_size,
        } => write::reset_stream(w, id, error_code, final_size),
        Frame::StopSending { id, error_code } => write::stop_sending(w, id, error_code),
        Frame::Crypto { offset, data } => {
            let header = write::crypto_header_size(offset, data.len());
            write::crypto_header(w, offset, data.len());
            assert_eq!(w.len(), header);
            w.bytes(data);
        }
        Frame::NewToken { token } => write::new_token(w, token),
        Frame::Stream {
            id,
            offset,
            fin,
            data,
        } => {
            let header = write::stream_header_size(id, offset, Some(data.len()));
            write::stream_header(w, id, offset, Some(data.len()), fin);
            assert_eq!(w.len(), header);
            w.bytes(data);
        }
        Frame::MaxData(maximum) => write::max_data(w, maximum),
        Frame::MaxStreamData { id, maximum } => write::max_stream_data(w, id, maximum),
        Frame::MaxStreams { direction, maximum } => write::max_streams(w, direction, maximum),
        Frame::DataBlocked(limit) => write::data_blocked(w, limit),
        Frame::StreamDataBlocked { id, limit } => write::stream_data_blocked(w, id, limit),
        Frame::StreamsBlocked { direction, limit } => write::streams_blocked(w, direction, limit),
        Frame::NewConnectionId {
            sequence,
            retire_prior_to,
            id,
            reset_token,
        } => write::new_connection_id(w, sequence, retire_prior_to, &id, &reset_token),
        Frame::RetireConnectionId { sequence } => write::retire_connection_id(w, sequence),
        Frame::PathChallenge(data) => write::path_challenge(w, data),
        Frame::PathResponse(data) => write::path_response(w, data),
        Frame::ConnectionClose {
            error_code,
            frame_type,
            reason,
        } => {
            let size = write::connection_close_size(error_code, frame_type, reason.len());
            write::connection_close(w, error_code, frame_type, reason);
            assert_eq!(w.len(), size, "the whole reason fits");
        }
        Frame::HandshakeDone => write::handshake_done(w),
        Frame::Datagram { data } => {
            write::datagram_header(w, Some(data.len()));
            w.bytes(data);
        }
        Frame::ResetStreamAt {
            id,
            error_code,
            final_size,
            reliable_size,
        } => write::reset_stream_at(w, id, error_code, final_size, reliable_size),
        Frame::AckFrequency(request) => write::ack_frequency(w, &request),
        Frame::ImmediateAck => write::immediate_ack(w),
    }
}
