/*
 * Seals and opens packets of RFC 9001, Appendix A, with squall's packet protection.
 *
 *     cc seal_and_open.c $(pkg-config --cflags --libs squall_protect)
 *
 * Prints one line and returns 0 if every byte is right.
 */
#include <squall_protect.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_LEN 20
#define PAYLOAD_LEN 99
#define PACKET_LEN (HEADER_LEN + PAYLOAD_LEN + SQUALL_TAG_LEN)

/* RFC 9001, section A.1: the destination connection id of the client's first packet. */
static const uint8_t dcid[8] = {0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08};

/* Section A.3: header and payload of the server's Initial packet, number 1, ... */
static const char header_hex[] = "c1000000010008f067a5502a4262b50040750001";
static const char payload_hex[] =
    "02000000000600405a020000560303eefce7f7b37ba1d1632e96677825ddf739"
    "88cfc79825df566dc5430b9a045a1200130100002e00330024001d00209d3c94"
    "0d89690b84d08a60993c144eca684d1081287c834d5311bcf32bb9da1a002b00"
    "020304";
/* ... and the packet on the wire. */
static const char packet_hex[] =
    "cf000000010008f067a5502a4262b5004075c0d95a482cd0991cd25b0aac406a"
    "5816b6394100f37a1c69797554780bb38cc5a99f5ede4cf73c3ec2493a1839b3"
    "dbcba3f6ea46c5b7684df3548e7ddeb9c3bf9c73cc3f3bded74b562bfb19fb84"
    "022f8ef4cdd93795d77d06edbb7aaf2f58891850abbdca3d20398c276456cbc4"
    "2158407dd074ee";

/* Section A.5: the keys of a ChaCha20-Poly1305 packet, and the packet. */
static const char chacha_key_hex[] =
    "c6d98ff3441c3fe1b2182094f69caa2ed4b716b65488960a7a984979fb23e1c8";
static const char chacha_iv_hex[] = "e0459b3474bdd0e44a41c144";
static const char chacha_hp_hex[] =
    "25a282b9e82f06f21f488917a4fc8f1b73573685608597d0efcb076b0ab7a7a4";
static const char chacha_packet_hex[] = "4cfe4189655e5cd55c41f69080575d7999c25a5bfb";

static void require(int is_right, const char *what) {
    if (!is_right) {
        fprintf(stderr, "seal_and_open: %s\n", what);
        exit(1);
    }
}

static void unhex(const char *hex, uint8_t *bytes, size_t len) {
    require(strlen(hex) == 2 * len, "a vector has another length");
    for (size_t i = 0; i < len; i++) {
        unsigned value;
        require(sscanf(hex + 2 * i, "%2x", &value) == 1, "a vector is no hexadecimal number");
        bytes[i] = (uint8_t)value;
    }
}

static struct squall_span span_of_the_packet(void) {
    struct squall_span span = {0};
    span.len = PACKET_LEN;
    span.pn_offset = HEADER_LEN - 2;
    return span;
}

/* Packets in one buffer: sealed by the server, opened by the client. */
static void spans(void) {
    uint8_t buf[PACKET_LEN] = {0}, payload[PAYLOAD_LEN], packet[PACKET_LEN];
    unhex(header_hex, buf, HEADER_LEN);
    unhex(payload_hex, payload, PAYLOAD_LEN);
    unhex(packet_hex, packet, PACKET_LEN);
    struct squall_keys server, client;
    require(squall_initial_keys(1, dcid, sizeof dcid, false, &server) == SQUALL_STATUS_OK,
            "no keys for the server");
    require(squall_initial_keys(1, dcid, sizeof dcid, true, &client) == SQUALL_STATUS_OK,
            "no keys for the client");

    /* The payload is read directly from the application's memory. */
    struct squall_slice source = {payload, sizeof payload};
    struct squall_span span = span_of_the_packet();
    span.header_len = HEADER_LEN;
    span.packet_number = 1;
    require(squall_seal(server.local_packet, server.local_header, 0, buf, sizeof buf, &span, 1,
                        &source) == SQUALL_STATUS_OK,
            "sealing failed");
    require(span.outcome == SQUALL_OPEN, "the packet was refused");
    require(memcmp(buf, packet, PACKET_LEN) == 0, "the sealed packet is another");

    span = span_of_the_packet();
    require(squall_unprotect(client.remote_header, buf, sizeof buf, &span, 1) == SQUALL_STATUS_OK,
            "header protection stays");
    require(span.packet_number == 1 && span.header_len == HEADER_LEN, "the number is another");
    /* A receiver expands the truncated number here. */
    require(squall_open(client.remote_packet, 0, buf, sizeof buf, &span, 1, 0) == SQUALL_STATUS_OK,
            "opening failed");
    require(span.outcome == SQUALL_OPEN, "the packet is not authentic");
    require(memcmp(buf + HEADER_LEN, payload, PAYLOAD_LEN) == 0, "the payload is another");

    /* One wrong bit, and the payload is wiped. */
    memcpy(buf, packet, PACKET_LEN);
    buf[PACKET_LEN - 1] ^= 1;
    span = span_of_the_packet();
    squall_unprotect(client.remote_header, buf, sizeof buf, &span, 1);
    squall_open(client.remote_packet, 0, buf, sizeof buf, &span, 1, 0);
    require(span.outcome == SQUALL_FORGED && buf[HEADER_LEN] == 0, "a forged packet was opened");

    squall_packet_key_free(server.local_packet);
    squall_packet_key_free(server.remote_packet);
    squall_packet_key_free(client.local_packet);
    squall_packet_key_free(client.remote_packet);
    squall_header_key_free(server.local_header);
    squall_header_key_free(server.remote_header);
    squall_header_key_free(client.local_header);
    squall_header_key_free(client.remote_header);
}

/* A packet with header, payload and tag apart, and header protection by masks. */
static void scattered(void) {
    uint8_t key[32], iv[SQUALL_IV_LEN], hp[32], expected[21];
    unhex(chacha_key_hex, key, sizeof key);
    unhex(chacha_iv_hex, iv, sizeof iv);
    unhex(chacha_hp_hex, hp, sizeof hp);
    unhex(chacha_packet_hex, expected, sizeof expected);
    struct squall_packet_key *packet_key;
    struct squall_header_key *header_key;
    require(squall_packet_key_new(SQUALL_CHACHA20_POLY1305, key, sizeof key, iv, &packet_key) ==
                SQUALL_STATUS_OK,
            "no key");
    require(squall_header_key_new(SQUALL_CHACHA20_POLY1305, hp, sizeof hp, &header_key) ==
                SQUALL_STATUS_OK,
            "no header-protection key");

    uint8_t header[4] = {0x42, 0x00, 0xbf, 0xf4}, payload[1] = {0x01}, tag[SQUALL_TAG_LEN];
    struct squall_packet packet = {0};
    packet.header = header;
    packet.header_len = sizeof header;
    packet.payload = payload;
    packet.payload_len = sizeof payload;
    packet.tag = tag;
    packet.packet_number = 654360564;
    require(squall_seal_scattered(packet_key, &packet, 1) == SQUALL_STATUS_OK, "sealing failed");
    require(packet.outcome == SQUALL_OPEN, "the packet was refused");

    /* The sample begins four bytes after the number does; this number has three. */
    uint8_t sent[21], sample[1][SQUALL_SAMPLE_LEN], mask[1][SQUALL_MASK_LEN];
    memcpy(sent, header, 4);
    memcpy(sent + 4, payload, 1);
    memcpy(sent + 5, tag, SQUALL_TAG_LEN);
    memcpy(sample[0], sent + 1 + 4, SQUALL_SAMPLE_LEN);
    require(squall_masks(header_key, (const uint8_t(*)[SQUALL_SAMPLE_LEN])sample, mask, 1) ==
                SQUALL_STATUS_OK,
            "no mask");
    sent[0] ^= mask[0][0] & 0x1f;
    for (int i = 0; i < 3; i++) {
        sent[1 + i] ^= mask[0][1 + i];
    }
    require(memcmp(sent, expected, sizeof sent) == 0, "the sealed packet is another");

    /* A contiguous packet is opened in place. */
    memcpy(sent, header, 4);
    packet.header = sent;
    packet.payload = sent + 4;
    packet.tag = sent + 5;
    packet.outcome = SQUALL_PENDING;
    require(squall_open_scattered(packet_key, &packet, 1) == SQUALL_STATUS_OK, "opening failed");
    require(packet.outcome == SQUALL_OPEN && sent[4] == 0x01, "the packet is not authentic");

    squall_packet_key_free(packet_key);
    squall_header_key_free(header_key);
}

/* Wrong arguments are reported, and no pointer is followed. */
static void misuse(void) {
    struct squall_packet_key *key = NULL;
    struct squall_packet packet = {0};
    struct squall_span span = {0};
    uint8_t bytes[32] = {0};
    require(squall_packet_key_new(0x1304, bytes, 16, bytes, &key) == SQUALL_STATUS_SUITE, "suite");
    require(squall_packet_key_new(SQUALL_AES_128_GCM, bytes, 32, bytes, &key) ==
                SQUALL_STATUS_LENGTH,
            "length of a key");
    require(squall_packet_key_new(SQUALL_AES_128_GCM, NULL, 16, bytes, &key) == SQUALL_STATUS_NULL,
            "null for a key");
    require(key == NULL, "a key of nothing");
    require(squall_packet_key_new(SQUALL_AES_128_GCM, bytes, 16, bytes, &key) == SQUALL_STATUS_OK,
            "no key");
    require(squall_seal_scattered(NULL, &packet, 1) == SQUALL_STATUS_NULL, "null for a key");
    require(squall_seal_scattered(key, NULL, 1) == SQUALL_STATUS_NULL, "null for packets");
    require(squall_seal_scattered(key, &packet, 1) == SQUALL_STATUS_NULL, "null for a tag");
    require(squall_open(key, 0, NULL, 10, &span, 1, 0) == SQUALL_STATUS_NULL, "null for a buffer");
    span.outcome = 5;
    require(squall_open(key, 0, bytes, 32, &span, 1, 0) == SQUALL_STATUS_VALUE, "outcome");
    span.outcome = SQUALL_PENDING;
    struct squall_slice source = {bytes + 4, 4};
    require(squall_seal(key, NULL, 0, bytes, 32, &span, 1, &source) == SQUALL_STATUS_OVERLAP,
            "a source in the buffer");
    require(squall_open(key, 0, bytes, 32, &span, 1, 0) == SQUALL_STATUS_OK, "an empty span");
    require(span.outcome == SQUALL_SKIP, "an empty span was opened");
    squall_packet_key_free(key);
    squall_packet_key_free(NULL);
    squall_header_key_free(NULL);
}

int main(void) {
    spans();
    scattered();
    misuse();
    printf("sealed and opened: AES-128-GCM by %s, ChaCha20-Poly1305 by %s\n",
           squall_kernel_name(SQUALL_AES_128_GCM), squall_kernel_name(SQUALL_CHACHA20_POLY1305));
    return 0;
}
