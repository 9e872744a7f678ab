# Machine 2 connects to machine 1, then machine 1 to machine 2.
set -e
# TCP over the fabric: the server of perftest -R may lose the second of its connections on an emulated processor.
export EXCHANGE='-x 3'
case $MACHINE in
    1)
        /suite/end serve 18660
        /suite/end connect 18670 10.219.0.2
        ;;
    2)
        /suite/end connect 18660 10.219.0.1
        /suite/end serve 18670
        ;;
esac
