#!/bin/bash
# Process 1 of each machine: makes the directories daemons expect, then reaps what others leave behind.
umask 022
mkdir -p /run/lock /run/munge /run/mysqld/data /run/slurmctld /run/slurmdbd /var/spool/slurmd
chmod 1777 /run/lock
chown munge: /run/munge
chown mysql:slurm /run/mysqld && chmod 710 /run/mysqld
chown mysql: /run/mysqld/data && chmod 700 /run/mysqld/data
chown slurm: /run/slurmctld /run/slurmdbd
for n in 1 2 3; do
    mkdir -p "/home/user$n" && chown "user$n:" "/home/user$n"
done
# All names are in /etc/hosts; a private bridge reaches no name server, and Slurm would wait 10 s for one.
sed -i 's/^hosts:.*/hosts: files/' /etc/nsswitch.conf
touch /run/ready
trap 'exit 0' TERM INT
while :; do
    sleep infinity &
    wait
done
