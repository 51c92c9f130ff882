/* Where programs in a guest look for the certificates they trust when no variable tells them: these names
 * lead to berth's files, which have the usual roots too. A virtual machine makes the links as it boots
 * (vm/init/boot.c); a container has them in its image (backends/docker_image.c), since its root cannot be
 * written.
 */
#ifndef BERTH_VM_TRUST_STORES_H
#define BERTH_VM_TRUST_STORES_H

#define BT_GUEST_TRUST_PEM "config/trust.pem" /* below /run/berth: roots and berth's authority */
#define BT_GUEST_TRUST_JKS "config/trust.jks" /* the same as a Java key store */

/* Debian's and Alpine's, OpenSSL's own, Fedora's, Java's. Where an image has no such folder there is nothing
 * to do. */
static const struct bt_trust_store {
    const char *path; /* without leading slash */
    const char *file; /* below /run/berth */
} bt_trust_stores[] = {
    {"etc/ssl/certs/ca-certificates.crt", BT_GUEST_TRUST_PEM},
    {"etc/ssl/cert.pem", BT_GUEST_TRUST_PEM},
    {"etc/pki/tls/certs/ca-bundle.crt", BT_GUEST_TRUST_PEM},
    {"etc/ssl/certs/java/cacerts", BT_GUEST_TRUST_JKS},
    {"etc/pki/java/cacerts", BT_GUEST_TRUST_JKS},
};

#endif
