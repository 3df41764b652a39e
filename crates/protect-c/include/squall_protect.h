/*
 * squall's QUIC packet protection (RFC 9001, section 5).
 *
 * Written by cbindgen: `SQUALL_WRITE_HEADER=1 cargo test -p squall-protect-c --test header`.
 */

#ifndef SQUALL_PROTECT_H
#define SQUALL_PROTECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * AES-128-GCM, by its number in TLS (RFC 8446, section B.4).
 */
#define SQUALL_AES_128_GCM 4865

/**
 * AES-256-GCM.
 */
#define SQUALL_AES_256_GCM 4866

/**
 * ChaCha20-Poly1305.
 */
#define SQUALL_CHACHA20_POLY1305 4867

/**
 * Length in bytes of an IV.
 */
#define SQUALL_IV_LEN 12

/**
 * Length in bytes of the ciphertext sample that header protection reads (RFC 9001, section 5.4.2).
 */
#define SQUALL_SAMPLE_LEN 16

/**
 * Length in bytes of a header-protection mask.
 */
#define SQUALL_MASK_LEN 5

/**
 * Not processed yet. The functions process pending packets only.
 */
#define SQUALL_PENDING 0

/**
 * Received: authentic and decrypted in place. To be sent: sealed.
 */
#define SQUALL_OPEN 1

/**
 * Received: the tag did not match, and the payload was wiped.
 */
#define SQUALL_FORGED 2

/**
 * Received: its keys are not available. Set by the caller, never by the library.
 */
#define SQUALL_NO_KEY 3

/**
 * Not processed: too short, outside the buffer, over another packet, or with an impossible number.
 */
#define SQUALL_SKIP 4

/**
 * Length in bytes of the AEAD tag at the end of every packet.
 */
#define SQUALL_TAG_LEN 16

/**
 * The result of a call. Unless it is `SQUALL_STATUS_OK` or `SQUALL_STATUS_INTERNAL`, nothing was
 * processed.
 */
enum squall_status {
  /**
   * The call was carried out. Each packet's result is in its `outcome`.
   */
  SQUALL_STATUS_OK = 0,
  /**
   * A pointer that must not be null is null.
   */
  SQUALL_STATUS_NULL = 1,
  /**
   * A length is wrong: a key's does not match the suite, or something is longer than the library
   * can describe (2^32 - 1 bytes).
   */
  SQUALL_STATUS_LENGTH = 2,
  /**
   * The suite is unknown, or two keys of one call are of different suites.
   */
  SQUALL_STATUS_SUITE = 3,
  /**
   * A value is not allowed: an unknown `outcome`, or an array that is not aligned.
   */
  SQUALL_STATUS_VALUE = 4,
  /**
   * Memory that must not overlap does.
   */
  SQUALL_STATUS_OVERLAP = 5,
  /**
   * A bug in the library: it panicked and printed why to standard error. Packets of the call may
   * be half processed.
   */
  SQUALL_STATUS_INTERNAL = 6,
};

/**
 * An expanded header-protection key of one direction. Threads may share it.
 */
struct squall_header_key;

/**
 * An expanded AEAD key of one direction. Threads may share it; only `squall_packet_key_shrink` and
 * `squall_packet_key_free` need exclusive access.
 */
struct squall_packet_key;

/**
 * The keys of both directions. Each is freed by its own function.
 */
struct squall_keys {
  /**
   * What this endpoint seals with.
   */
  struct squall_packet_key *local_packet;
  /**
   * What this endpoint protects headers with.
   */
  struct squall_header_key *local_header;
  /**
   * What this endpoint opens with.
   */
  struct squall_packet_key *remote_packet;
  /**
   * What this endpoint removes header protection with.
   */
  struct squall_header_key *remote_header;
};

/**
 * A packet whose parts may lie anywhere in memory.
 *
 * If the payload follows the header in memory and the tag follows the payload, the packet is
 * processed in place. Otherwise it is copied, once to seal and twice to open, through 16 kB that
 * the thread allocates for its first such packet and keeps; longer ones are allocated separately.
 */
struct squall_packet {
  /**
   * The header, which is the AEAD's associated data. Only read.
   */
  const uint8_t *header;
  /**
   * Bytes of the header.
   */
  size_t header_len;
  /**
   * Plaintext or ciphertext, replaced by the other.
   */
  uint8_t *payload;
  /**
   * Bytes of the payload.
   */
  size_t payload_len;
  /**
   * 16 bytes: written by `squall_seal_scattered`, read by `squall_open_scattered`.
   */
  uint8_t *tag;
  /**
   * The last `source_len` bytes of the payload are read from here first; null if all of it lies
   * in place.
   */
  const uint8_t *source;
  /**
   * Bytes of the source, at most `payload_len`.
   */
  size_t source_len;
  /**
   * The full packet number.
   */
  uint64_t packet_number;
  /**
   * The path's id, a part of the nonce if both endpoints use the multipath extension; else 0.
   */
  uint32_t path_id;
  /**
   * The packet's result: `SQUALL_PENDING` and so on.
   */
  uint8_t outcome;
};

/**
 * One packet in a buffer: offsets and results, no pointers.
 *
 * Spans of one call lie in ascending order and do not overlap.
 */
struct squall_span {
  /**
   * The packet's first byte, from the start of the buffer.
   */
  uint32_t start;
  /**
   * Bytes from the first byte of the header to the end of the tag.
   */
  uint32_t len;
  /**
   * After `squall_unprotect`, the truncated number, which the caller expands before
   * `squall_open`. For `squall_seal`, the full number.
   */
  uint64_t packet_number;
  /**
   * Where the packet number begins, from `start`.
   */
  uint16_t pn_offset;
  /**
   * Header bytes, packet number included. Set by `squall_unprotect`, or by the writer of the
   * packet.
   */
  uint16_t header_len;
  /**
   * Which of the caller's keys opens the packet; `squall_open` processes the spans of one slot.
   */
  uint8_t slot;
  /**
   * The packet's result: `SQUALL_PENDING` and so on.
   */
  uint8_t outcome;
};

/**
 * Bytes that are only read. `data` may be null if `len` is 0.
 */
struct squall_slice {
  /**
   * The first byte.
   */
  const uint8_t *data;
  /**
   * Number of bytes.
   */
  size_t len;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The name of the kernel that keys of a suite use on this CPU, such as `vaes512`; null for an
 * unknown suite. The text is static.
 */
const char *squall_kernel_name(uint16_t suite);

/**
 * Expands an AEAD key (RFC 9001, section 5.1: "quic key" and "quic iv") and stores it in `*out`.
 *
 * `key_len` is 16 for AES-128-GCM and 32 for the others. The caller keeps the bytes that it
 * passes, and wipes them. The key is freed with `squall_packet_key_free`.
 *
 * # Safety
 *
 * `key` is null or points to `key_len` bytes, `iv` is null or points to 12 bytes, and `out` is
 * null or points to a pointer that can be written.
 */
enum squall_status squall_packet_key_new(uint16_t suite,
                                         const uint8_t *key,
                                         size_t key_len,
                                         const uint8_t *iv,
                                         struct squall_packet_key **out);

/**
 * Wipes and frees a key. Null is ignored.
 *
 * # Safety
 *
 * `key` is null, or comes from this library, was not freed before, and is not in use.
 */
void squall_packet_key_free(struct squall_packet_key *key);

/**
 * Builds the larger tables of a busy key, up to 3 kB, unless they exist: for a caller that passes
 * full packets one at a time, since only calls with eight or more build them automatically. A
 * further call costs next to nothing.
 *
 * # Safety
 *
 * `key` is null or comes from this library, and is not freed meanwhile.
 */
enum squall_status squall_packet_key_grow(const struct squall_packet_key *key);

/**
 * Drops the larger tables of a key, for a connection that becomes idle.
 *
 * # Safety
 *
 * `key` is null or comes from this library, and nothing else uses it meanwhile.
 */
enum squall_status squall_packet_key_shrink(struct squall_packet_key *key);

/**
 * Expands a header-protection key (RFC 9001, section 5.1: "quic hp") and stores it in `*out`.
 *
 * `key_len` is 16 for AES-128-GCM and 32 for the others. The caller keeps the bytes that it
 * passes, and wipes them. The key is freed with `squall_header_key_free`.
 *
 * # Safety
 *
 * `key` is null or points to `key_len` bytes, and `out` is null or points to a pointer that can be
 * written.
 */
enum squall_status squall_header_key_new(uint16_t suite,
                                         const uint8_t *key,
                                         size_t key_len,
                                         struct squall_header_key **out);

/**
 * Wipes and frees a key. Null is ignored.
 *
 * # Safety
 *
 * `key` is null, or comes from this library, was not freed before, and is not in use.
 */
void squall_header_key_free(struct squall_header_key *key);

/**
 * Derives the Initial keys of a connection (RFC 9001, section 5.2; RFC 9369, section 3.3) from the
 * destination connection id of the client's first packet, and stores them in `*out`.
 *
 * `version` is 1 or 0x6b3343cf; any other gets the constants of version 1. `is_client` says whose
 * view it is: a client's local keys are the server's remote keys. An id has at most 20 bytes.
 *
 * # Safety
 *
 * `dcid` is null or points to `dcid_len` bytes, and `out` is null or can be written.
 */
enum squall_status squall_initial_keys(uint32_t version,
                                       const uint8_t *dcid,
                                       size_t dcid_len,
                                       bool is_client,
                                       struct squall_keys *out);

/**
 * Computes the header-protection masks of `count` samples (RFC 9001, sections 5.4.3 and 5.4.4).
 *
 * The first byte of a mask, limited to its low four bits for a long header and five for a short
 * one, is XORed onto the first byte of the packet, and the others onto the packet number. Many
 * samples in one call cost less than one call for each.
 *
 * # Safety
 *
 * `key` is null or comes from this library. `samples` and `masks` are null or point to `count`
 * samples and masks, which do not overlap.
 */
enum squall_status squall_masks(const struct squall_header_key *key,
                                const uint8_t (*samples)[SQUALL_SAMPLE_LEN],
                                uint8_t (*masks)[SQUALL_MASK_LEN],
                                size_t count);

/**
 * Seals the pending packets (RFC 9001, section 5.3), without header protection: see
 * `squall_masks`.
 *
 * Each becomes `SQUALL_OPEN`, or `SQUALL_SKIP` when its number is above 2^62 - 1 or its source is
 * longer than its payload.
 *
 * # Safety
 *
 * `key` is null or comes from this library. `packets` is null or points to `count` packets, whose
 * pointers are null or valid for their lengths. No memory that is written overlaps with any other
 * of the call, and nothing else uses it meanwhile.
 */
enum squall_status squall_seal_scattered(const struct squall_packet_key *key,
                                         struct squall_packet *packets,
                                         size_t count);

/**
 * Opens the pending packets, whose headers are bare (RFC 9001, section 5.3).
 *
 * Each becomes `SQUALL_OPEN`, or `SQUALL_FORGED` with its payload wiped, or `SQUALL_SKIP` when its
 * number is above 2^62 - 1 or its source is longer than its payload.
 *
 * # Safety
 *
 * As for `squall_seal_scattered`.
 */
enum squall_status squall_open_scattered(const struct squall_packet_key *key,
                                         struct squall_packet *packets,
                                         size_t count);

/**
 * Removes header protection from the pending spans (RFC 9001, section 5.4.1), and sets their
 * `header_len` and their truncated `packet_number`.
 *
 * They stay pending; one that is too short to hold a sample, or outside the buffer, or over an
 * earlier span, becomes `SQUALL_SKIP`.
 *
 * # Safety
 *
 * `key` is null or comes from this library. `buf` and `spans` are null or point to `buf_len` bytes
 * and `count` spans, which do not overlap and which nothing else uses meanwhile.
 */
enum squall_status squall_unprotect(const struct squall_header_key *key,
                                    uint8_t *buf,
                                    size_t buf_len,
                                    struct squall_span *spans,
                                    size_t count);

/**
 * Opens the pending spans of `slot`, in place (RFC 9001, section 5.3).
 *
 * Each becomes `SQUALL_OPEN`, or `SQUALL_FORGED` with its payload wiped, or `SQUALL_SKIP` when its
 * geometry or number is impossible. A forged packet does not affect the others. `path_id` is part
 * of the nonce if both endpoints use the multipath extension, else 0.
 *
 * # Safety
 *
 * `key` is null or comes from this library. `buf` and `spans` are null or point to `buf_len` bytes
 * and `count` spans, which do not overlap and which nothing else uses meanwhile.
 */
enum squall_status squall_open(const struct squall_packet_key *key,
                               uint32_t path_id,
                               uint8_t *buf,
                               size_t buf_len,
                               struct squall_span *spans,
                               size_t count,
                               uint8_t slot);

/**
 * Seals the pending spans (RFC 9001, section 5.3) and applies header protection (section 5.4), if
 * `header` is not null.
 *
 * The payload of a span is `buf[start + header_len .. start + len - 16]`; the tag goes into the
 * last 16 bytes. `sources` is null if all payloads lie in place, or else points to `count` slices:
 * the last bytes of each payload are read from there. `path_id` is part of the nonce if both
 * endpoints use the multipath extension, else 0.
 *
 * Each span becomes `SQUALL_OPEN`, or `SQUALL_SKIP` when it is refused: outside the buffer, over
 * an earlier span, a number length that the first byte contradicts, a number above 2^62 - 1,
 * number and payload together below four bytes, a source longer than the payload.
 *
 * # Safety
 *
 * `key` and `header` are null or come from this library. `buf`, `spans` and `sources` are null or
 * point to `buf_len` bytes, `count` spans and `count` slices; each slice is empty or can be read.
 * None of these overlaps with `buf` or `spans`, or is written by others meanwhile.
 */
enum squall_status squall_seal(const struct squall_packet_key *key,
                               const struct squall_header_key *header,
                               uint32_t path_id,
                               uint8_t *buf,
                               size_t buf_len,
                               struct squall_span *spans,
                               size_t count,
                               const struct squall_slice *sources);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SQUALL_PROTECT_H */
