// ipsec-mb's direct interface, a packet a call, as functions: the library has macros over a table
// of its own.
//
// AES-GCM alone: for ChaCha20 the library makes no header-protection mask in one call.

#include <intel-ipsec-mb.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { TAG_LEN = 16, BLOCK_LEN = 16, NONCE_LEN = 12, MASK_LEN = 5 };

// The keys of one direction, and what the library keeps while it works on a packet.
struct keys {
    struct gcm_key_data key;
    struct gcm_context_data context;
    uint8_t header_key[15 * BLOCK_LEN] __attribute__((aligned(16)));
    uint8_t unused[15 * BLOCK_LEN] __attribute__((aligned(16)));
    uint8_t iv[NONCE_LEN];
    bool is_256;
    IMB_MGR *manager;
};

const char *glue_version(void) {
    return imb_get_version_str();
}

const char *glue_kernel(void) {
    IMB_MGR *manager = alloc_mb_mgr(0);
    if (manager == NULL)
        return "not reported by the library";
    IMB_ARCH arch;
    init_mb_mgr_auto(manager, &arch);
    const bool has_vaes = (manager->features & IMB_FEATURE_VAES) != 0;
    free_mb_mgr(manager);
    switch (arch) {
    case IMB_ARCH_AVX512: return has_vaes ? "AVX-512 and VAES" : "AVX-512";
    case IMB_ARCH_AVX2: return "AVX2";
    case IMB_ARCH_AVX: return "AVX";
    case IMB_ARCH_SSE: return "SSE";
    default: return "without AES-NI";
    }
}

void glue_free(void *opaque) {
    struct keys *keys = opaque;
    free_mb_mgr(keys->manager);
    free(keys);
}

void *glue_expand(bool is_256, const uint8_t *key, const uint8_t *iv, const uint8_t *header_key) {
    struct keys *keys = NULL;
    if (posix_memalign((void **)&keys, 64, sizeof *keys) != 0)
        return NULL;
    memset(keys, 0, sizeof *keys);
    keys->manager = alloc_mb_mgr(0);
    if (keys->manager == NULL) {
        free(keys);
        return NULL;
    }
    init_mb_mgr_auto(keys->manager, NULL);
    keys->is_256 = is_256;
    memcpy(keys->iv, iv, NONCE_LEN);
    if (is_256) {
        IMB_AES256_GCM_PRE(keys->manager, key, &keys->key);
        IMB_AES_KEYEXP_256(keys->manager, header_key, keys->header_key, keys->unused);
    } else {
        IMB_AES128_GCM_PRE(keys->manager, key, &keys->key);
        IMB_AES_KEYEXP_128(keys->manager, header_key, keys->header_key, keys->unused);
    }
    return keys;
}

// RFC 9001, section 5.3.
static void nonce(const struct keys *keys, uint64_t number, uint8_t out[NONCE_LEN]) {
    uint64_t low;
    memcpy(out, keys->iv, NONCE_LEN);
    memcpy(&low, out + 4, sizeof low);
    low ^= __builtin_bswap64(number);
    memcpy(out + 4, &low, sizeof low);
}

bool glue_seal(void *opaque, uint8_t *packet, size_t header_len, size_t len, uint64_t number) {
    struct keys *keys = opaque;
    uint8_t iv[NONCE_LEN], *payload = packet + header_len;
    const size_t payload_len = len - header_len - TAG_LEN;
    nonce(keys, number, iv);
    if (keys->is_256)
        IMB_AES256_GCM_ENC(keys->manager, &keys->key, &keys->context, payload, payload, payload_len,
                           iv, packet, header_len, payload + payload_len, TAG_LEN);
    else
        IMB_AES128_GCM_ENC(keys->manager, &keys->key, &keys->context, payload, payload, payload_len,
                           iv, packet, header_len, payload + payload_len, TAG_LEN);
    return true;
}

// The library returns the tag that the packet should have; its users compare it.
bool glue_open(void *opaque, uint8_t *packet, size_t header_len, size_t len, uint64_t number) {
    struct keys *keys = opaque;
    uint8_t iv[NONCE_LEN], expected[TAG_LEN], *payload = packet + header_len;
    const size_t payload_len = len - header_len - TAG_LEN;
    nonce(keys, number, iv);
    if (keys->is_256)
        IMB_AES256_GCM_DEC(keys->manager, &keys->key, &keys->context, payload, payload, payload_len,
                           iv, packet, header_len, expected, TAG_LEN);
    else
        IMB_AES128_GCM_DEC(keys->manager, &keys->key, &keys->context, payload, payload, payload_len,
                           iv, packet, header_len, expected, TAG_LEN);
    uint64_t a[2], b[2];
    memcpy(a, expected, TAG_LEN);
    memcpy(b, payload + payload_len, TAG_LEN);
    return ((a[0] ^ b[0]) | (a[1] ^ b[1])) == 0;
}

// One block of AES: zeros encrypted with the sample as the vector (CFB) or as the counter (CTR).
bool glue_mask(void *opaque, const uint8_t *sample, uint8_t *mask) {
    static const uint8_t zeros[BLOCK_LEN];
    struct keys *keys = opaque;
    uint8_t block[BLOCK_LEN];
    if (!keys->is_256) {
        IMB_AES128_CFB_ONE(keys->manager, block, zeros, sample, keys->header_key, BLOCK_LEN);
    } else {
        IMB_JOB *job = IMB_GET_NEXT_JOB(keys->manager);
        job->cipher_mode = IMB_CIPHER_CNTR;
        job->cipher_direction = IMB_DIR_ENCRYPT;
        job->chain_order = IMB_ORDER_CIPHER_HASH;
        job->hash_alg = IMB_AUTH_NULL;
        job->enc_keys = keys->header_key;
        job->dec_keys = keys->unused;
        job->key_len_in_bytes = 32;
        job->iv = sample;
        job->iv_len_in_bytes = BLOCK_LEN;
        job->src = zeros;
        job->dst = block;
        job->cipher_start_src_offset_in_bytes = 0;
        job->msg_len_to_cipher_in_bytes = BLOCK_LEN;
        job = IMB_SUBMIT_JOB_NOCHECK(keys->manager);
        if (job == NULL)
            job = IMB_FLUSH_JOB(keys->manager);
        if (job == NULL || job->status != IMB_STATUS_COMPLETED)
            return false;
    }
    memcpy(mask, block, MASK_LEN);
    return true;
}
