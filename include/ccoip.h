/* Ports of PCCL. */
#ifndef CCOIP_H
#define CCOIP_H

/* Where a master listens unless it is told otherwise. */
#define CCOIP_PROTOCOL_PORT_MASTER 48148
/* First ports that the listeners of a peer try; each goes up from there until one is free. */
#define CCOIP_PROTOCOL_PORT_SHARED_STATE 48149
#define CCOIP_PROTOCOL_PORT_P2P 48150

#endif
