/* The two TLS contexts. See tls.h. */
#include "policy/gateway/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>

#include "policy/gateway/certificate.h"

/* RFC 7301: a length byte before each name. */
static const unsigned char alpn_both[] = "\x02h2\x08http/1.1";
#define ALPN_HTTP1 (alpn_both + 3)
#define ALPN_HTTP1_LENGTH (sizeof(alpn_both) - 1 - 3)
/* What agents may choose from, best first; http/1.0 is curl's with --http1.0. */
static const unsigned char alpn_agents[] = "\x02h2\x08http/1.1\x08http/1.0";

struct bt_tls {
    struct bt_certificates *certificates;
    SSL_CTX *agents, *upstreams;
};

struct bt_tls *bt_tls_free(struct bt_tls *tls)
{
    if (tls == NULL)
        return NULL;
    SSL_CTX_free(tls->agents);
    SSL_CTX_free(tls->upstreams);
    bt_certificates_free(tls->certificates);
    free(tls);
    return NULL;
}

/* An agent that offers protocols and none of ours would speak something else: refused (RFC 7301, 3.2). */
static int choose_protocol(SSL *ssl, const unsigned char **ret_chosen, unsigned char *ret_length,
                           const unsigned char *offered, unsigned offered_length, void *context)
{
    unsigned char *chosen;
    (void)ssl;
    (void)context;
    if (SSL_select_next_proto(&chosen, ret_length, alpn_agents, sizeof(alpn_agents) - 1, offered,
                              offered_length) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *ret_chosen = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static SSL_CTX *make_agents(void)
{
    static const unsigned char id[] = "berth";
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    if (context == NULL || SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1 ||
        SSL_CTX_set_session_id_context(context, id, sizeof(id) - 1) != 1) {
        SSL_CTX_free(context);
        return NULL;
    }
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    (void)SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF); /* tickets need none */
    (void)SSL_CTX_set_num_tickets(context, 1);
    SSL_CTX_set_alpn_select_cb(context, choose_protocol, NULL);
    return context;
}

static int add_anchors(X509_STORE *store, const struct bt_buffer *text, size_t *ret_count)
{
    BIO *bio = BIO_new_mem_buf(text->data != NULL ? text->data : "", (int)text->length);
    X509 *certificate;
    int result = bio != NULL ? 0 : -ENOMEM;
    while (result == 0 && (certificate = PEM_read_bio_X509(bio, NULL, NULL, NULL)) != NULL) {
        result = X509_STORE_add_cert(store, certificate) == 1 ? 0 : -EINVAL;
        X509_free(certificate);
        (*ret_count)++;
    }
    /* The end of the text is the only error that ends it well. */
    if (result == 0 && ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE)
        result = -EINVAL;
    ERR_clear_error();
    BIO_free(bio);
    return result;
}

static SSL_CTX *make_upstreams(const struct bt_tls_settings *settings, struct bt_error *error)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    size_t count = 0;
    if (context == NULL || SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1) {
        SSL_CTX_free(context);
        (void)bt_fail(error, BT_EXIT_ERROR, ENOMEM, NULL, "cannot make a TLS context");
        return NULL;
    }
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    (void)SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    for (size_t i = 0; i < settings->anchor_count; i++) {
        if (add_anchors(SSL_CTX_get_cert_store(context), &settings->anchors[i], &count) == 0)
            continue;
        SSL_CTX_free(context);
        (void)bt_fail(error, BT_EXIT_ERROR, EINVAL, "check gateway.trust in config.yaml",
                      "a trusted certificate cannot be read");
        return NULL;
    }
    return context;
}

int bt_tls_new(const struct bt_tls_settings *settings, struct bt_tls **ret_tls, struct bt_error *error)
{
    struct bt_tls *tls = bt_new(1, sizeof(*tls));
    int result = bt_certificates_new(settings->authority, &tls->certificates, error);
    if (result == 0) {
        tls->upstreams = make_upstreams(settings, error);
        tls->agents = make_agents();
        result = tls->upstreams == NULL ? -error->code : 0;
        if (result == 0 && tls->agents == NULL)
            result = bt_fail(error, BT_EXIT_ERROR, ENOMEM, NULL, "cannot make a TLS context");
    }
    if (result < 0)
        bt_tls_free(tls);
    else
        *ret_tls = tls;
    return result;
}

SSL *bt_tls_accept(struct bt_tls *tls, const char *host)
{
    SSL *ssl = SSL_new(tls->agents);
    if (ssl == NULL || bt_certificates_use(tls->certificates, host, ssl) < 0) {
        SSL_free(ssl);
        return NULL;
    }
    SSL_set_accept_state(ssl);
    return ssl;
}

SSL *bt_tls_connect(struct bt_tls *tls, const char *host, bool may_http2)
{
    SSL *ssl = SSL_new(tls->upstreams);
    const unsigned char *protocols = may_http2 ? alpn_both : ALPN_HTTP1;
    unsigned length = (unsigned)(may_http2 ? sizeof(alpn_both) - 1 : ALPN_HTTP1_LENGTH);
    if (ssl == NULL || SSL_set1_host(ssl, host) != 1 || SSL_set_tlsext_host_name(ssl, host) != 1 ||
        SSL_set_alpn_protos(ssl, protocols, length) != 0) {
        SSL_free(ssl);
        return NULL;
    }
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    SSL_set_connect_state(ssl);
    return ssl;
}

bool bt_tls_is_http2(const SSL *ssl)
{
    const unsigned char *chosen = NULL;
    unsigned length = 0;
    SSL_get0_alpn_selected(ssl, &chosen, &length);
    return length == 2 && memcmp(chosen, "h2", 2) == 0;
}
