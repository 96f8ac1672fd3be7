# A stand-in for slurmstepd: root's, titled as the real one, it runs tasks as a user and ends with the last of them.
# Usage: stepd.pl JOB.STEP UID TASKS COMMAND...   (each task gets its number in SLURM_LOCALID)
# As the SPANK plugin in Slurm's hook of root it says on root's socket (GANDIVA_ROOT_SOCKET) whose the task is, and
# leaves it the connection, by its number in GANDIVA_LINK and with the seconds it took in GANDIVA_TOOK.
use strict;
use POSIX;
use Fcntl;
use Socket;
use Time::HiRes;
my ($name, $uid, $tasks, @command) = @ARGV;
$0 = "slurmstepd: [$name]";
# As the real one it has a socket that is called after its node (GANDIVA_STEPD_SOCKET is the beginning of its path).
my $door = "$ENV{GANDIVA_STEPD_SOCKET}_$name";
unlink $door;
socket(my $listen, PF_UNIX, SOCK_STREAM, 0) or die;
bind($listen, pack_sockaddr_un($door)) or die "$door: $!";
my $status = 0;
for my $task (0 .. $tasks - 1) {
    my $pid = fork();
    next if $pid;
    POSIX::setsid();
    $ENV{SLURM_LOCALID} = $task;
    my $link = $ENV{GANDIVA_ROOT_SOCKET} ? root_link($ENV{GANDIVA_ROOT_SOCKET}) : undef;
    $ENV{GANDIVA_LINK} = fileno($link) if $link;
    if ($uid) { POSIX::setgid($uid); POSIX::setuid($uid); }
    exec { $command[0] } @command or exit 127;
}
while ((my $pid = wait()) != -1) { $status = $? if $?; }
exit($status ? 1 : 0);

sub root_link {
    my $begin = Time::HiRes::time();
    socket(my $link, PF_UNIX, SOCK_STREAM, 0) or return;
    connect($link, pack_sockaddr_un($_[0])) or return;
    syswrite($link, "TASK $uid\n");
    sysread($link, my $answer, 100) or return;
    return if $answer ne "READY\n";
    fcntl($link, F_SETFD, 0);
    $ENV{GANDIVA_TOOK} = Time::HiRes::time() - $begin;
    return $link;
}
