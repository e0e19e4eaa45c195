/* SPDX-License-Identifier: MIT */
/* charon's interface to IPsec, carried out by lockgated. */
#ifndef LOCKGATE_IPSEC_H_
#define LOCKGATE_IPSEC_H_

#include <kernel/kernel_ipsec.h>

/* Never fails for want of lockgated: the link connects when it can. */
kernel_ipsec_t *lockgate_ipsec_create(void);
/* An interface that fails every call, for a charon of another version. */
kernel_ipsec_t *lockgate_refusal_create(void);

#endif /* LOCKGATE_IPSEC_H_ */
