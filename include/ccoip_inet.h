/* Internet addresses of the C interface of PCCL. C99 and C++. */
#ifndef CCOIP_INET_H
#define CCOIP_INET_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Which of the two addresses of a ccoip_inet_address_t counts. */
typedef enum ccoip_inet_protocol_t {
    inetIPv4 = 0,
    inetIPv6 = 1
} ccoip_inet_protocol_t;

/* 127.0.0.1 is {127, 0, 0, 1}. */
typedef struct ccoip_ipv4_address_t {
    uint8_t data[4];
} ccoip_ipv4_address_t;

/* The octets in reading order: ::1 is fifteen zeros and a one. */
typedef struct ccoip_ipv6_address_t {
    uint8_t data[16];
} ccoip_ipv6_address_t;

typedef struct ccoip_inet_address_t {
    ccoip_inet_protocol_t protocol;
    ccoip_ipv4_address_t ipv4;
    ccoip_ipv6_address_t ipv6;
} ccoip_inet_address_t;

/* The port is in the byte order of the host. */
typedef struct ccoip_socket_address_t {
    ccoip_inet_address_t inet;
    uint16_t port;
} ccoip_socket_address_t;

#ifdef __cplusplus
}
#endif

#endif
