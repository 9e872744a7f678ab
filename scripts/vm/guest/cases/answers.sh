# The kernel's answers to a list of calls are those of soft-mlx5 as a kernel, but for the differences that docs/vm.md
# explains: lines that begin with - and + are those of soft-mlx5 and of this kernel.
. /suite/environment
case $(uname -r) in
    6.1.*) ;;
    *) echo "the differences are listed for Linux 6.1"; exit 77 ;;
esac
set -e
answers >/tmp/answers
diff -U 0 /suite/answers.txt /tmp/answers | grep '^[-+][a-z]' >/tmp/differences || true
diff -U 0 "/suite/differences-$LINK.txt" /tmp/differences
