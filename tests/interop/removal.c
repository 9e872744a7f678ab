/* Threads that wait for a device in every way that libibverbs and librdmacm have, until the device is removed. Each
 * must wake with what the kernel says then, and no call may block after that. The argument is an address of the device.
 */

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include "../../drop-in/examples/connect.h"

enum { DEPTH = 16, SIZE = 64 };

static struct ibv_context *context;
static struct ibv_comp_channel *channel, *polled;
static struct rdma_event_channel *cm;
static int port_went;

/* Reads an event without blocking; returns 0 or the errno. */
static int read_now(int fd)
{
	char event[64];
	check(!fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK), "fcntl");
	return read(fd, event, sizeof event) < 0 ? errno : 0;
}

/* What poll reports within so many milliseconds, or without a limit. */
static int reports(int fd, int time)
{
	struct pollfd poll_fd = { fd, POLLIN, 0 };
	check(poll(&poll_fd, 1, time) >= 0, "poll");
	return poll_fd.revents;
}

/* The last event is IBV_EVENT_DEVICE_FATAL. The file does not end after it: no further read returns. */
static void *read_async_events(void *unused)
{
	struct ibv_async_event event;
	do {
		check(!ibv_get_async_event(context, &event), "ibv_get_async_event");
		port_went |= event.event_type == IBV_EVENT_PORT_ERR;
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_DEVICE_FATAL);
	check(reports(context->async_fd, 100) == 0, "the end of the asynchronous events");
	check(read_now(context->async_fd) == EAGAIN, "a read after the asynchronous events");
	return unused;
}

static void *get_completion_event(void *unused)
{
	struct ibv_cq *cq;
	void *user;
	check(ibv_get_cq_event(channel, &cq, &user) == -1 && errno == EIO, "the end of a completion channel");
	return unused;
}

static void *poll_completion_channel(void *unused)
{
	check(reports(polled->fd, -1) == POLLERR, "what poll reports of a completion channel");
	check(read_now(polled->fd) == EIO, "a read of a completion channel");
	return unused;
}

static void *get_cm_event(void *unused)
{
	struct rdma_cm_event *event;
	check(!rdma_get_cm_event(cm, &event), "rdma_get_cm_event");
	check(event->event == RDMA_CM_EVENT_DEVICE_REMOVAL, rdma_event_str(event->event));
	check(!rdma_ack_cm_event(event), "rdma_ack_cm_event");
	return unused;
}

int main(int argc, char **argv)
{
	static char memory[2 * DEPTH * SIZE] __attribute__((aligned(4096)));
	context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	polled = ibv_create_comp_channel(context);
	check(pd && channel && polled, "creating the objects");
	struct ibv_cq *cq = ibv_create_cq(context, 4 * DEPTH, NULL, channel, 0);
	struct ibv_cq *other = ibv_create_cq(context, 4 * DEPTH, NULL, polled, 0);
	check(cq && other, "ibv_create_cq");
	struct ibv_qp *from = create(pd, cq, NULL, DEPTH), *to = create(pd, cq, NULL, DEPTH);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	check(mr != NULL, "ibv_reg_mr");
	to_init(from);
	to_init(to);
	connect_to(from, to->qp_num);
	connect_to(to, from->qp_num);
	struct rdma_cm_id *id = NULL;
	if (argc > 1) {
		struct addrinfo *address;
		check(!getaddrinfo(argv[1], NULL, NULL, &address), "getaddrinfo");
		check((cm = rdma_create_event_channel()) && !rdma_create_id(cm, &id, NULL, RDMA_PS_TCP) &&
			      !rdma_bind_addr(id, address->ai_addr) && !rdma_listen(id, 1) && id->verbs,
		      "listening");
		freeaddrinfo(address);
	}
	/* One message, and receives that stay. */
	for (int n = 0; n < DEPTH; n++)
		check(!post_recv(to, n, memory + n * SIZE, SIZE, mr), "ibv_post_recv");
	check(!post_send(from, 0, memory + DEPTH * SIZE, SIZE, mr), "ibv_post_send");
	wait_for(cq);
	wait_for(cq);
	check(!ibv_req_notify_cq(cq, 0) && !ibv_req_notify_cq(other, 0), "ibv_req_notify_cq");

	void *(*waiters[])(void *) = { read_async_events, get_completion_event, poll_completion_channel, get_cm_event };
	pthread_t threads[4];
	int count = id ? 4 : 3;
	for (int n = 0; n < count; n++)
		check(!pthread_create(&threads[n], NULL, waiters[n], NULL), "pthread_create");
	puts("waiting");
	fflush(stdout);
	for (int n = 0; n < count; n++)
		pthread_join(threads[n], NULL);

	/* Posts and polls reach no device. */
	struct ibv_wc wc;
	struct ibv_port_attr port;
	check(!post_send(from, 1, memory, SIZE, mr), "ibv_post_send");
	check(ibv_poll_cq(cq, 1, &wc) == 0, "ibv_poll_cq");
	check(!ibv_alloc_pd(context) && errno == EIO, "ibv_alloc_pd");
	check(ibv_query_port(context, 1, &port) == EIO, "ibv_query_port");
	if (id) {
		rdma_destroy_id(id);
		rdma_destroy_event_channel(cm);
	}
	/* Objects can be destroyed, whatever the kernel has done with them. */
	check(!ibv_destroy_qp(from) && !ibv_destroy_qp(to), "ibv_destroy_qp");
	check(!ibv_destroy_cq(cq) && !ibv_destroy_cq(other), "ibv_destroy_cq");
	check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	check(!ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	check(!ibv_destroy_comp_channel(channel) && !ibv_destroy_comp_channel(polled), "ibv_destroy_comp_channel");
	check(!ibv_close_device(context), "ibv_close_device");
	printf("removed%s\n", port_went ? ", after the port" : "");
	return 0;
}
