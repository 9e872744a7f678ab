# No message of mlx5 or of the kernel's verbs that is not listed with its reason.
sed 's/ | .*//' /suite/expected-messages.txt >/tmp/expected
dmesg | grep -E 'mlx5|infiniband|WARNING|BUG|Call Trace|WATCHDOG|hung task' |
    grep -v -F -f /tmp/expected >/tmp/messages
! [ -s /tmp/messages ] || { cat /tmp/messages; exit 1; }
