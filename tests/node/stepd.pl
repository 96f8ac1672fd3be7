# A stand-in for slurmstepd: root's, titled as the real one, it runs tasks as a user and ends with the last of them.
# Usage: stepd.pl JOB.STEP UID TASKS COMMAND...   (each task gets its number in SLURM_LOCALID)
use strict;
use POSIX;
my ($name, $uid, $tasks, @command) = @ARGV;
$0 = "slurmstepd: [$name]";
my $status = 0;
for my $task (0 .. $tasks - 1) {
    my $pid = fork();
    next if $pid;
    POSIX::setsid();
    $ENV{SLURM_LOCALID} = $task;
    if ($uid) { POSIX::setgid($uid); POSIX::setuid($uid); }
    exec { $command[0] } @command or exit 127;
}
while ((my $pid = wait()) != -1) { $status = $? if $?; }
exit($status ? 1 : 0);
